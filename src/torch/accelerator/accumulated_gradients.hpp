#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

namespace kolo::tensors {

/// The gradients that the passes of a step have left so far, to notice when the program drops them.
class AccumulatedGradients {
 public:
  void remember(const std::vector<torch::optim::OptimizerParamGroup>& groups);
  /// Whether they are undefined now, or zero, as after zero_grad(set_to_none = false). Waits for a
  /// GPU only if something has written to them.
  bool are_lost() const;

 private:
  std::vector<at::Tensor> parameters_;
  std::int64_t version_ = 0;  // of the first one's gradient
};

}  // namespace kolo::tensors
