#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include <ATen/core/Tensor.h>

#include "kolo/bucket_hook.hpp"
#include "kolo/collectives.hpp"
#include "kolo/distributed_optimizer.hpp"
#include "kolo/handle.hpp"
#include "torch/buckets/gradient_buckets.hpp"
#include "torch/sharding/shard_sets.hpp"
#include "torch/tensors/program_stream.hpp"

namespace kolo::tensors {

/// The reduction of one bucket, from its begin to its end.
///
/// Average and Sum reduce the whole bucket as one, and leave it on all ranks. Where it is divided,
/// each rank gets its own part of the gradients, which it then sums with those that have the same
/// part. Then, on a GPU, and with Adasum and a program's hook, which reduce gradients, the flags
/// that say whether there are any travel by themselves.
class BucketInFlight {
 public:
  /// Begins it, under the name `name`, which no other bucket in flight has.
  BucketInFlight(const GradientBuckets& buckets, std::size_t index, std::string name,
                 const DistributedOptimizerOptions& options, const BucketHook& hook);
  /// The same where it is divided among `sets`: this rank's part of the gradients goes to `part`
  /// [n], which stays alive.
  BucketInFlight(const GradientBuckets& buckets, std::size_t index, std::string name,
                 const DistributedOptimizerOptions& options, const ShardSets& sets,
                 const at::Tensor& part);

  /// Begins what can begin now, without blocking.
  void advance();
  /// Looks without blocking: wait() would not block.
  bool is_over() const;
  /// Blocks until gradients and flags of all ranks are reduced in their place; on a GPU, the
  /// current stream waits for the gradients.
  void wait();

  /// As those of Handle: of the whole, or of the flags.
  std::chrono::steady_clock::time_point started() const { return handle_.started(); }
  std::chrono::steady_clock::time_point ended() const { return handle_.ended(); }

 private:
  /// A sum over the ranks that have the same part, which begins when this rank has it.
  struct Replicas {
    at::Tensor part;
    AllreduceOptions options;
  };
  void begin_replicas();

  ProgramStream stream_;  // on which the operations below are ordered
  Handle handle_;
  std::optional<Handle> parts_;      // of gradients that go without the flags
  std::optional<Replicas> waiting_;  // for parts_
  std::optional<Handle> replicas_;
  std::optional<TensorHandle> hooked_;
  at::Tensor gradients_;  // where the hook's result belongs
};

}  // namespace kolo::tensors
