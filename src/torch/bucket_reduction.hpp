#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include <ATen/core/Tensor.h>

#include "kolo/bucket_hook.hpp"
#include "kolo/distributed_optimizer.hpp"
#include "kolo/handle.hpp"
#include "torch/gradient_buckets.hpp"
#include "torch/parameter_shards.hpp"

namespace kolo::tensors {

/// The reduction of one bucket, from its begin to its end.
///
/// Average and Sum reduce the whole bucket as one, and leave it on all ranks. Where it is divided,
/// each rank gets its own part of the gradients. Then, and with Adasum and a program's hook, which
/// reduce gradients, the flags that say whether there are any travel by themselves.
class BucketInFlight {
 public:
  /// Begins it, under the name `name`, which no other bucket in flight has. This rank's part of the
  /// gradients goes to `part`; without one, all of them stay where they are.
  BucketInFlight(const GradientBuckets& buckets, std::size_t index, std::string name,
                 const DistributedOptimizerOptions& options, const BucketHook& hook,
                 const ParameterShards::Part* part);

  /// Blocks until gradients and flags of all ranks are reduced in their place.
  void wait();

  /// As those of Handle: of the whole, or of the flags.
  std::chrono::steady_clock::time_point started() const { return handle_.started(); }
  std::chrono::steady_clock::time_point ended() const { return handle_.ended(); }

 private:
  Handle handle_;
  std::optional<Handle> parts_;  // of gradients that go without the flags
  std::optional<TensorHandle> hooked_;
  at::Tensor gradients_;  // where the hook's result belongs
};

}  // namespace kolo::tensors
