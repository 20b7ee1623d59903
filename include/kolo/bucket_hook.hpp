#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "kolo/tensor_handle.hpp"

namespace kolo {

/// A bucket whose gradients have arrived, as a hook gets it.
struct GradientBucket {
  std::size_t index = 0;  ///< among the optimizer's buckets; the same on all ranks
  /// Its own, the same on all ranks: begin the names of the hook's operations with it.
  std::string name;
  /// [n]: this rank's gradients one after another, of one type, with zeros in the gaps: the memory
  /// that they lie in. Zero where this rank has none.
  at::Tensor gradients;
  /// Whose gradients they are, in their order; those with sparse ones are not among them.
  std::vector<at::Tensor> parameters;
};

/// A program's own way to reduce a bucket, after DDP's communication hooks; see
/// DistributedOptimizer::register_bucket_hook. Called inside backward() as soon as the last
/// gradient of a bucket has arrived, so it should begin an operation and not wait for it.
///
/// Returns the operation whose result is the reduced gradients [n], `gradients` itself or others;
/// or nothing, where it has reduced `gradients` in place already. What is left to do with a result
/// goes into TensorHandle::then: the optimizer's step() or synchronize() calls it, in the order of
/// buckets, so it may run further collectives.
using BucketHook = std::function<std::optional<TensorHandle>(GradientBucket bucket)>;

}  // namespace kolo
