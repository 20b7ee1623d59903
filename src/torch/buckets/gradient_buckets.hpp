#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "kolo/shared_buffer.hpp"
#include "torch/buckets/bucket_plan.hpp"

namespace kolo::tensors {

/// The memory of a plan's buckets, and the parameters' gradients as views of it. On a GPU, whatever
/// says which gradients there are lies apart in memory of the CPU: nobody has to wait for a GPU to
/// read it.
///
/// Autograd takes any new gradient as it comes, without a copy; `adopt` moves it into its place.
/// From then on backward() adds into that place, until the gradient is dropped again.
class GradientBuckets {
 public:
  /// `sparse[i]`: parameter i gets no place. All lie on one device. Collective over the set of
  /// `options`, whose name names the memory among all ranks.
  GradientBuckets(const std::vector<at::Tensor>& parameters, BucketPlan plan,
                  const std::vector<bool>& sparse, const OperationOptions& options);

  const BucketPlan& plan() const { return plan_; }
  const std::vector<Bucket>& buckets() const { return plan_.buckets; }
  const SharedBuffer& memory() const { return memory_; }
  at::Device device() const { return parameters_.front().device(); }
  /// Whether flags do not lie behind the gradients of their bucket, to be reduced with them.
  bool has_flags_apart() const { return !device().is_cpu(); }

  /// All gradients of a bucket as one tensor [n], without what says which there are.
  at::Tensor flat(const Bucket& bucket) const;
  std::vector<at::Tensor> parameters_of(const Bucket& bucket) const;
  std::vector<std::int64_t> shape_of(std::size_t parameter) const {
    return parameters_[parameter].sizes().vec();
  }

  /// Whether the parameter's gradients are sparse: the plan gave them no place.
  bool is_sparse(std::size_t parameter) const { return !views_[parameter].defined(); }
  /// Whether the parameter's gradient is the view of its place; a sparse one, whether there is any.
  bool is_adopted(std::size_t parameter) const;
  /// Makes it that, with the values it has; a sparse gradient that has a place becomes dense.
  /// Returns what the gradient was, if it was another: on a GPU, memory of a stream that must come
  /// behind the current one before it is reused.
  at::Tensor adopt(std::size_t parameter);
  /// Fills in what a bucket says of gradients that this rank does not have, which it has, and
  /// whether it takes part as one that `is_active`. Returns, on a GPU, what gradients were.
  std::vector<at::Tensor> complete(const Bucket& bucket, bool is_active);
  /// What a bucket says of its gradients [n].
  const at::Tensor& flags_of(const Bucket& bucket) const;
  /// After the reduction: every parameter that has a gradient on any rank gets it.
  void hand_out(const Bucket& bucket);
  /// After the reduction: whether any rank has the gradient of a bucket's member.
  bool is_anywhere(const Bucket& bucket, std::size_t member) const;
  /// After the reduction: what it made of the ranks' marks for being active, 1 or 0.
  double active(const Bucket& bucket) const;
  /// Takes the gradients that lie here, or in one bucket, from their parameters.
  void drop_gradients();
  void drop_gradients(const Bucket& bucket);

 private:
  std::vector<at::Tensor> parameters_;
  BucketPlan plan_;
  SharedBuffer memory_;
  std::vector<at::Tensor> views_;  // of each parameter's place, where it has one
  std::vector<at::Tensor> flags_;  // of each bucket
};

}  // namespace kolo::tensors
