#pragma once

#include <memory>

#include <ATen/core/Tensor.h>

#include "kolo/torch/bucket_hook.hpp"
#include "kolo/torch/power_sgd.hpp"
#include "kolo/torch/tensor_handle.hpp"
#include "torch/power_sgd/low_rank_reduction.hpp"

namespace kolo::tensors {

/// Implements the hook of a PowerSgd. Keeps its state by parameter name, since names outlive
/// layouts of buckets.
class PowerSgdReducer {
 public:
  /// `options` are in range and name the process set.
  explicit PowerSgdReducer(const PowerSgdOptions& options)
      : options_(options), set_(options.process_set->shared_from_this()) {}

  const PowerSgdOptions& options() const { return options_; }

  /// Starts the reduction of a bucket.
  TensorHandle reduce(GradientBucket bucket);

  /// Saves and restores the state; Qs of another shape are not used.
  const WarmStarts& state() const { return warm_starts_; }
  void set_state(const WarmStarts& state) { warm_starts_ = state; }

 private:
  const PowerSgdOptions options_;
  const std::shared_ptr<ProcessSet> set_;  // may outlive its Runtime
  WarmStarts warm_starts_;
};

}  // namespace kolo::tensors
