#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

namespace kolo::tensors {

/// While it lives, one group of an optimizer holds other parameters and all other groups are empty.
class SwappedParameters {
 public:
  SwappedParameters(torch::optim::Optimizer& optimizer, std::size_t group,
                    std::vector<at::Tensor> parameters)
      : optimizer_(optimizer) {
    for (auto& each : optimizer_.param_groups()) own_.push_back(std::exchange(each.params(), {}));
    optimizer_.param_groups()[group].params() = std::move(parameters);
  }
  ~SwappedParameters() {
    for (std::size_t i = 0; i < own_.size(); ++i) {
      optimizer_.param_groups()[i].params() = std::move(own_[i]);
    }
  }
  SwappedParameters(const SwappedParameters&) = delete;  // it swaps back once
  SwappedParameters& operator=(const SwappedParameters&) = delete;

 private:
  torch::optim::Optimizer& optimizer_;
  std::vector<std::vector<at::Tensor>> own_;
};

}  // namespace kolo::tensors
