#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

namespace kolo::tensors {

/// While it lives, the groups of an optimizer hold other parameters: group i those of
/// `parameters[i]`, or none.
class SwappedParameters {
 public:
  SwappedParameters(torch::optim::Optimizer& optimizer,
                    std::vector<std::vector<at::Tensor>> parameters)
      : optimizer_(optimizer) {
    parameters.resize(optimizer_.param_groups().size());
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      own_.push_back(
          std::exchange(optimizer_.param_groups()[i].params(), std::move(parameters[i])));
    }
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
