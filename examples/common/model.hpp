#pragma once

#include <cstdint>

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include "common/digest.hpp"

namespace examples {

std::int64_t count_parameters(const torch::nn::Module& model);
Digest digest_of_parameters(const torch::nn::Module& model);

/// Steps an optimizer without Kolo, as a DistributedOptimizer with or without `fused` would: the
/// baseline of comparisons.
void step_alone(torch::optim::Optimizer& optimizer, bool fused);

}  // namespace examples
