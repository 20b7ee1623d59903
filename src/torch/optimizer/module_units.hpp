#pragma once

#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include "kolo/unit_policy.hpp"

namespace kolo::tensors {

/// The optimizer's parameters in each unit of the model.
std::vector<std::vector<at::Tensor>> units_in(const torch::nn::Module& model,
                                              const UnitPolicy& policy,
                                              const torch::optim::Optimizer& optimizer);

}  // namespace kolo::tensors
