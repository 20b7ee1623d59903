#include "torch/accelerator/accumulated_gradients.hpp"

#include <algorithm>

namespace kolo::tensors {

void AccumulatedGradients::remember(const std::vector<torch::optim::OptimizerParamGroup>& groups) {
  remembered_.clear();
  for (const auto& group : groups) {
    for (const at::Tensor& parameter : group.params()) {
      const at::Tensor& gradient = parameter.grad();
      if (gradient.defined()) remembered_.push_back({parameter, gradient._version()});
    }
  }
}

bool AccumulatedGradients::are_lost() const {
  bool are_changed = false;
  for (const auto& [parameter, version] : remembered_) {
    const at::Tensor& gradient = parameter.grad();
    if (!gradient.defined()) return true;
    if (gradient._version() != version) are_changed = true;
  }
  if (!are_changed) return false;
  return std::ranges::none_of(remembered_, [](const Remembered& remembered) {
    const at::Tensor& gradient = remembered.parameter.grad();
    return (gradient.is_sparse() ? gradient._values() : gradient).any().item<bool>();
  });
}

}  // namespace kolo::tensors
