#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "kolo/tensor_collectives.hpp"

namespace kolo {

/// A bucket whose gradients have arrived, as a hook gets it.
struct GradientBucket {
  std::size_t index = 0;  ///< among the optimizer's buckets; the same on all ranks
  /// Its own, the same on all ranks: begin the names of the hook's operations with it.
  std::string name;
  /// [n]: this rank's gradients one after another, of one type, with zeros in the gaps: the memory
  /// that they lie in. Zero where this rank has none.
  at::Tensor gradients;
  std::vector<at::Tensor> parameters;  ///< whose gradients they are, in their order
};

/// What a hook has begun, and what is left to do with its result.
struct BucketReduction {
  /// None: the hook has reduced `gradients` in place before it returned.
  std::optional<TensorHandle> handle{};
  /// Given the handle's result, returns the reduced gradients [n]. Called by the optimizer's step()
  /// or synchronize(), in the order of buckets, so it may run further collectives. None: the result is
  /// them.
  std::function<at::Tensor(const at::Tensor& result)> finish{};
};

/// A program's own way to reduce a bucket, after DDP's communication hooks; see
/// DistributedOptimizer::register_bucket_hook. Called inside backward() as soon as the last gradient
/// of a bucket has arrived, so it should begin an operation and not wait for it.
using BucketHook = std::function<BucketReduction(GradientBucket bucket)>;

}  // namespace kolo
