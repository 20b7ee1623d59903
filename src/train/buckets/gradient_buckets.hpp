#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "kolo/shared_buffer.hpp"
#include "train/buckets/bucket_plan.hpp"
#include "train/buckets/gradient_stand_ins.hpp"
#include "train/tensors/parameter_storage.hpp"

namespace kolo::train {

/// What a rank says of itself with the gradients of a bucket.
struct RankFlags {
  bool is_active;                       ///< it has not joined
  bool has_counted;                     ///< its passes include one with a count
  std::optional<std::uint32_t> digest;  ///< of what ranks do alike; none: nothing is compared
};

/// The error text of accesses to the gradient of parameter `name` while it is reduced.
std::string refusal_of_gradient(const std::string& name);

/// The memory of a plan's buckets, with the parameters' gradients as views of it.
///
/// Autograd assigns a new gradient without copying it; `move_in` copies it into the bucket and
/// makes the view the gradient. backward() then adds to the bucket until the gradient is cleared.
/// The bucket, and with it the gradient, may have a wider dtype than the parameter. The flags of a
/// bucket say which gradients this rank has, from what kinds of passes, and whether it has joined.
/// For buckets on a GPU they are in CPU memory, so that reading them does not wait for the GPU.
class GradientBuckets {
 public:
  /// All parameters are on one device. `sparse[i]`: the gradient of parameter i is outside its
  /// bucket. Collective over the set of `options`, which names the memory.
  GradientBuckets(const std::vector<at::Tensor>& parameters, BucketPlan plan,
                  const std::vector<bool>& sparse, const OperationOptions& options);

  const std::vector<at::Tensor>& parameters() const { return parameters_; }
  const BucketPlan& plan() const { return plan_; }
  const std::vector<Bucket>& buckets() const { return plan_.buckets; }
  const SharedBuffer& memory() const { return memory_; }
  at::Device device() const { return parameters_.front().device(); }
  /// Whether flags are reduced separately from the gradients of their bucket.
  bool has_separate_flags() const { return !device().is_cpu(); }

  /// All gradients of a bucket as one tensor [n], without the flags.
  at::Tensor flat(const Bucket& bucket) const;
  /// A parameter's gradient in its bucket, in the parameter's shape; undefined for a sparse one.
  const at::Tensor& view(std::size_t parameter) const { return views_[parameter]; }

  bool is_sparse(std::size_t parameter) const { return !views_[parameter].defined(); }
  /// Whether the parameter's gradient is the view of its bucket; for a sparse one, whether it has
  /// any.
  bool is_in_place(std::size_t parameter) const;
  /// Copies the gradients of one bucket into it, made dense, and makes the views the gradients, but
  /// for those that are in place already. On a GPU all are multiplied by `factor`, in the same
  /// launch. Returns the replaced gradients: on a GPU their memory may be reused only after the
  /// current stream has copied it.
  std::vector<at::Tensor> move_in(const std::vector<std::size_t>& parameters, double factor = 1.0);
  /// Converts a gradient that stays outside its bucket to the bucket's dtype, in which further
  /// gradients are added to it.
  void widen(std::size_t parameter);
  /// Zeroes missing gradients, moves in all others, multiplied by `factor`, and sets the flags.
  /// Stand-ins of `stand_ins`, which may be null, are missing gradients. Returns the gradients that
  /// were replaced.
  std::vector<at::Tensor> fill(const Bucket& bucket, const RankFlags& own,
                               const GradientStandIns* stand_ins, double factor = 1.0);
  /// Zeroes the gaps between the gradients of a bucket, which a codec would encode with them.
  void zero_gaps(const Bucket& bucket);
  const at::Tensor& flags_of(const Bucket& bucket) const;
  /// While a bucket is reduced, each access to its gradients, or each write, throws c10::Error,
  /// naming the parameter with `names`. Its flat() may be used.
  void set_refusals(const std::vector<std::string>& names);
  void refuse(const Bucket& bucket, Refused refused);

  /// After the reduction: makes the views the gradients of parameters for which any rank has one.
  void assign_gradients(const Bucket& bucket);
  /// After the reduction: whether any rank has the gradient of a bucket's member.
  bool is_present(const Bucket& bucket, std::size_t member) const;
  /// After the reduction: the reduced activity flags, which are 1 or 0 on each rank.
  double reduced_activity(const Bucket& bucket) const;
  /// After the reduction: whether the passes of any rank include one with a count.
  bool has_any_counted(const Bucket& bucket) const;
  /// After the reduction of a bucket with digests: whether two differ.
  bool has_unequal_digests(const Bucket& bucket) const;
  /// Undefines the gradients in all buckets, or in one.
  void clear_gradients();
  void clear_gradients(const Bucket& bucket);

 private:
  at::TensorOptions type_of(const Bucket& bucket) const;
  void copy_on_gpu(const std::vector<at::Tensor>& gradients, const std::vector<at::Tensor>& views,
                   double factor) const;

  std::vector<at::Tensor> parameters_;
  ProcessSet* set_;
  BucketPlan plan_;
  SharedBuffer memory_;
  std::vector<at::Tensor> views_;  // of each parameter; undefined for sparse ones
  std::vector<at::Tensor> flags_;  // of each bucket
};

}  // namespace kolo::train
