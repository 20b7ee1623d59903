#pragma once

#include <torch/nn/module.h>

namespace shard {

/// From now on operators are watched for the model's parameters, as Shard::Full does where it
/// gathers parameters when they are used; but these stay where they are, and nothing is gathered.
void watch_parameters(const torch::nn::Module& model);

}  // namespace shard
