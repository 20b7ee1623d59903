#pragma once

#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include "kolo/torch/module_filter.hpp"

namespace kolo::tensors {

/// The optimizer's and the frozen parameters in each unit of the model.
std::vector<std::vector<at::Tensor>> units_in(const torch::nn::Module& model,
                                              const ModuleFilter& policy,
                                              const torch::optim::Optimizer& optimizer);

}  // namespace kolo::tensors
