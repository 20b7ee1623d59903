#pragma once

#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include "kolo/torch/distributed_optimizer.hpp"
#include "kolo/torch/filters.hpp"

namespace kolo::train {

/// The optimizer's and the frozen parameters in each unit of the model.
std::vector<std::vector<at::Tensor>> units_in(const NamedModules& model, const ModuleFilter& policy,
                                              const torch::optim::Optimizer& optimizer);

}  // namespace kolo::train
