#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

namespace kolo::tensors {

/// The gradients that the passes of a step have accumulated so far. Detects that the program has
/// dropped them.
class AccumulatedGradients {
 public:
  void remember(const std::vector<torch::optim::OptimizerParamGroup>& groups);
  /// Whether they have become undefined, or zero as after zero_grad(set_to_none = false). Waits for
  /// a GPU only if something has written to them.
  bool are_lost() const;

 private:
  std::vector<at::Tensor> parameters_;
  std::int64_t version_ = 0;  // of the first parameter's gradient
};

}  // namespace kolo::tensors
