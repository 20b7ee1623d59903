#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>

#include <ATen/core/Tensor.h>

#include "kolo/collectives.hpp"
#include "kolo/handle.hpp"
#include "kolo/torch/distributed_optimizer.hpp"
#include "kolo/torch/tensor_handle.hpp"
#include "torch/buckets/gradient_buckets.hpp"
#include "torch/reduction/gradient_compression.hpp"
#include "torch/sharding/shard_sets.hpp"
#include "torch/tensors/program_stream.hpp"

namespace kolo::tensors {

/// The reduction of one bucket, from submission to completion.
///
/// Average and Sum reduce the whole bucket in one operation, flags included. A sharded bucket is
/// reduce-scattered, and each rank then sums its shard with its replicas. For sharded buckets,
/// Adasum, bucket hooks, codecs and on a GPU, the flags are reduced separately.
class BucketReduction {
 public:
  /// How the elements are sent. `residual` belongs to a codec, or is undefined.
  struct Coding {
    const GradientCompression& compression;
    at::Tensor residual;
  };
  /// A program's hook for one bucket, which is called with its gradients [n].
  using BoundHook = std::function<std::optional<TensorHandle>(const at::Tensor& gradients)>;

  /// Submits the bucket under `name`, which is unique among buckets in flight; with the `hook`, if
  /// there is one.
  BucketReduction(const GradientBuckets& buckets, std::size_t index, const std::string& name,
                  const DistributedOptimizerOptions& options, const Coding& coding,
                  const BoundHook& hook);
  /// The same for a sharded bucket; writes this rank's shard of the gradients to `shard` [n], which
  /// outlives this.
  BucketReduction(const GradientBuckets& buckets, std::size_t index, std::string name,
                  const DistributedOptimizerOptions& options, const Coding& coding,
                  const ShardSets& sets, const at::Tensor& shard);

  /// Starts the sum over replicas if this rank's shard is ready. Does not block.
  void advance();
  /// Whether wait() would return immediately.
  bool is_ready() const;
  /// Blocks until gradients and flags of all ranks are reduced; on a GPU the current stream waits
  /// for the gradients. Throws the first error of its operations after all of them have ended.
  void wait();

  /// Times of the bucket's or its flags' reduction; see Handle.
  std::chrono::steady_clock::time_point started() const { return handle_.started(); }
  std::chrono::steady_clock::time_point ended() const { return handle_.ended(); }

 private:
  /// The sum over replicas, until this rank's shard is ready.
  struct ReplicaSum {
    at::Tensor shard;
    AllreduceOptions options;
  };
  void begin_replica_sum();
  void take_hook_result();

  ProgramStream stream_;             // orders the operations below
  Handle handle_;                    // of the whole bucket, or of its flags
  std::optional<Handle> gradients_;  // if they are reduced without the flags
  std::optional<ReplicaSum> pending_replica_sum_;
  std::optional<Handle> replica_sum_;
  std::optional<TensorHandle> hook_;
  at::Tensor hook_target_;  // receives the hook's result
};

}  // namespace kolo::tensors
