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
  /// Whether any has become undefined, or all zero as after zero_grad(set_to_none = false); a
  /// program may zero some. Waits for a GPU only if something has written to them.
  bool are_lost() const;

 private:
  struct Remembered {
    at::Tensor parameter;
    std::int64_t version;  // of its gradient
  };

  std::vector<Remembered> remembered_;
};

}  // namespace kolo::tensors
