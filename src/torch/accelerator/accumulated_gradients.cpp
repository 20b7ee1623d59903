#include "torch/accelerator/accumulated_gradients.hpp"

#include <algorithm>

namespace kolo::tensors {

void AccumulatedGradients::remember(const std::vector<torch::optim::OptimizerParamGroup>& groups) {
  parameters_.clear();
  for (const auto& group : groups) {
    for (const at::Tensor& parameter : group.params()) {
      if (parameter.grad().defined()) parameters_.push_back(parameter);
    }
  }
  if (!parameters_.empty()) version_ = parameters_.front().grad()._version();
}

bool AccumulatedGradients::are_lost() const {
  if (parameters_.empty()) return false;
  const at::Tensor& first = parameters_.front().grad();
  if (!first.defined()) return true;
  if (first._version() == version_) return false;
  return std::ranges::none_of(parameters_, [](const at::Tensor& parameter) {
    const at::Tensor& gradient = parameter.grad();
    if (!gradient.defined()) return false;
    return (gradient.is_sparse() ? gradient._values() : gradient).any().item<bool>();
  });
}

}  // namespace kolo::tensors
