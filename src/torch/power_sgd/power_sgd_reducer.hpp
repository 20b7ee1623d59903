#pragma once

#include <map>
#include <string>
#include <vector>

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

  /// Starts the reduction of a bucket.
  TensorHandle reduce(GradientBucket bucket);

 private:
  bool compresses(const at::Tensor& gradient) const;
  std::vector<LowRankGradient> choose(const GradientBucket& bucket);

  const PowerSgdOptions options_;
  std::map<std::string, LowRankState> states_;
};

}  // namespace kolo::tensors
