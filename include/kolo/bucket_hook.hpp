#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "kolo/tensor_handle.hpp"

#pragma GCC visibility push(default)
namespace kolo {

/// A bucket whose gradients have arrived.
struct GradientBucket {
  std::size_t index = 0;  ///< among the optimizer's buckets; the same on all ranks
  std::string name;       ///< unique, the same on all ranks: the prefix for the hook's operations
  /// [n], of one dtype: this rank's gradients one after another, in the memory that they lie in;
  /// zeros in gaps, and for gradients that this rank does not have.
  at::Tensor gradients;
  std::vector<at::Tensor> parameters;  ///< of `gradients`, in order; without sparse ones
};

/// A program's own reduction of a bucket, like DDP's communication hooks; see
/// DistributedOptimizer::register_bucket_hook.
///
///   optimizer.register_bucket_hook([](kolo::GradientBucket bucket) {
///     return kolo::allreduce_async_(bucket.gradients, {.name = bucket.name});
///   });
///
/// Called inside backward() when the bucket's last gradient has arrived, or for an incomplete
/// bucket in step() or synchronize(): start an operation and do not wait for it. Work on the result
/// belongs into TensorHandle::then, which step() or synchronize() runs in the order of buckets, so
/// it may run further collectives.
/// @return the operation whose result is the reduced gradients [n], `gradients` or another tensor;
///   nothing if the hook has reduced `gradients` in place already
using BucketHook = std::function<std::optional<TensorHandle>(GradientBucket bucket)>;

}  // namespace kolo
#pragma GCC visibility pop
