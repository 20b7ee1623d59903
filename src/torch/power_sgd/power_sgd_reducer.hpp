#pragma once

#include <ATen/core/Tensor.h>

#include "kolo/bucket_hook.hpp"
#include "kolo/power_sgd.hpp"
#include "kolo/tensor_handle.hpp"
#include "torch/power_sgd/low_rank_reduction.hpp"

namespace kolo::tensors {

/// What the hook of a PowerSgd does, and what it keeps between steps: by the names of parameters,
/// which outlast layouts of buckets.
class PowerSgdReducer {
 public:
  /// `options` are in range and name the process set.
  explicit PowerSgdReducer(const PowerSgdOptions& options) : options_(options) {}

  const PowerSgdOptions& options() const { return options_; }

  /// Starts the reduction of a bucket.
  TensorHandle reduce(GradientBucket bucket);

  /// What a checkpoint holds, and the inverse: Qs that do not fit are not used.
  const WarmStarts& state() const { return warm_starts_; }
  void set_state(const WarmStarts& state) { warm_starts_ = state; }

 private:
  const PowerSgdOptions options_;
  WarmStarts warm_starts_;
};

}  // namespace kolo::tensors
