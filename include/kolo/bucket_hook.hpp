#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "kolo/process_set.hpp"
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
  std::vector<at::Tensor> parameters;        ///< of `gradients`, in order; without sparse ones
  std::vector<std::string> parameter_names;  ///< the optimizer's, of `parameters`; unique
  std::vector<at::Tensor> views;      ///< of `gradients`: that of each parameter, in its shape
  std::int64_t step = 0;              ///< steps that the optimizer has taken; the same on all ranks
  ProcessSet* process_set = nullptr;  ///< the optimizer's, for the hook's operations
  /// Inside TensorHandle::then alone: whether any rank has the gradient of `parameters[i]`. One
  /// that none has is not used, whatever the hook makes of it.
  std::function<bool(std::size_t i)> is_present;
};

/// A program's own reduction of a bucket, like DDP's communication hooks; see
/// DistributedOptimizer::register_bucket_hook.
///
///   optimizer.register_bucket_hook([](kolo::GradientBucket bucket) {
///     return kolo::allreduce_async_(bucket.gradients,
///                                   {.name = bucket.name, .process_set = bucket.process_set});
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
