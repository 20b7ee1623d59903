#pragma once

#include <torch/nn/module.h>

namespace shard {

/// Watches operators for the model's parameters from now on, as Shard::Full does if it gathers
/// parameters on use. Here parameters stay in place, and nothing is gathered.
void watch_parameters(const torch::nn::Module& model);

}  // namespace shard
