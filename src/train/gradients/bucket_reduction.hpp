#pragma once

#include <chrono>
#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <ATen/core/Tensor.h>

#include "kolo/handle.hpp"
#include "kolo/torch/distributed_optimizer_options.hpp"
#include "kolo/torch/program_stream.hpp"
#include "kolo/torch/tensor_handle.hpp"
#include "train/buckets/gradient_buckets.hpp"
#include "train/gradients/gradient_compression.hpp"
#include "train/sharding/parameter_shards.hpp"

namespace kolo::train {

/// Runs `work`. Its exception becomes the first of several, unless there is one already.
template <class Work>
void keep_first_error(std::exception_ptr& first_error, const Work& work) {
  try {
    work();
  } catch (...) {
    if (!first_error) first_error = std::current_exception();
  }
}

/// The reduction of one bucket and of its flags, from submission to completion.
class BucketReduction {
 public:
  using Clock = std::chrono::steady_clock;

  /// `handle`: of the whole bucket, flags included.
  BucketReduction(ProgramStream stream, Handle handle)
      : stream_(std::move(stream)), handle_(std::move(handle)), has_flags_inside_(true) {}
  /// `flags` and `gradients`, if it has any, are reduced separately.
  BucketReduction(ProgramStream stream, Handle flags, std::optional<Handle> gradients)
      : stream_(std::move(stream)), handle_(std::move(flags)), gradients_(std::move(gradients)) {}
  virtual ~BucketReduction() = default;
  BucketReduction(const BucketReduction&) = delete;  // its operations end once
  BucketReduction& operator=(const BucketReduction&) = delete;

  /// Starts what follows the operations that have ended. Does not block.
  virtual void advance() {}
  /// Whether wait() would return immediately.
  virtual bool is_ready() const;
  /// Waits for at most `duration`, and returns is_ready(). Throws no error of the reduction.
  virtual bool wait_for(Clock::duration duration);
  /// Blocks until gradients and flags of all ranks are reduced; on a GPU the current stream waits
  /// for the gradients. Throws the first error of its operations after all of them have ended.
  virtual void wait();

  /// Whether the flags are elements of the gradients' reduction, such as an average.
  bool has_flags_inside() const { return has_flags_inside_; }
  /// Times of the bucket's or its flags' reduction; see Handle.
  Clock::time_point started() const { return handle_.started(); }
  Clock::time_point ended() const { return handle_.ended(); }

 protected:
  bool are_gradients_ready() const { return !gradients_ || gradients_->is_ready(); }
  /// Waits for both operations, until the deadline. Returns whether they have ended.
  bool end_by(Clock::time_point deadline);
  /// Waits for both. Returns the first error.
  std::exception_ptr end();
  ProgramStream& stream() { return stream_; }
  Handle& gradients() { return *gradients_; }

 private:
  ProgramStream stream_;  // orders the operations
  Handle handle_;         // of the whole bucket, or of its flags
  std::optional<Handle> gradients_;
  bool has_flags_inside_ = false;
};

/// How the elements of a bucket are sent. `residual` belongs to a codec, or is undefined.
struct Coding {
  const GradientCompression& compression;
  at::Tensor residual;
};
/// A program's hook for one bucket, which is called with its gradients [n].
using BoundHook = std::function<std::optional<TensorHandle>(const at::Tensor& gradients)>;

/// By what gradients are multiplied as they are copied into their bucket: on a GPU, averages of n
/// ranks are sums of n-ths, since NCCL only adds. Sums in rank order are divided afterwards, as on
/// the CPU, and a hook gets the gradients as they are.
double factor_in_copy(const GradientBuckets& buckets, const DistributedOptimizerOptions& options,
                      bool has_hook);

/// Submits the bucket under `name`, which is unique among buckets in flight, so that each rank gets
/// all reduced gradients: as one operation with its flags if possible, by the `hook` if there is
/// one.
std::unique_ptr<BucketReduction> reduce_whole(const GradientBuckets& buckets, std::size_t index,
                                              const std::string& name,
                                              const DistributedOptimizerOptions& options,
                                              const Coding& coding, const BoundHook& hook);

/// Submits the bucket under `name`; writes this rank's shard of the gradients to `shard` [n], which
/// outlives the reduction. The shard is then summed with its replicas.
std::unique_ptr<BucketReduction> reduce_to_shard(const GradientBuckets& buckets, std::size_t index,
                                                 const std::string& name,
                                                 const DistributedOptimizerOptions& options,
                                                 const Coding& coding, const ShardSets& sets,
                                                 const at::Tensor& shard);

}  // namespace kolo::train
