#pragma once

#include <cstddef>

#include <torch/optim/optimizer.h>

#include "torch/sharding/parameter_shards.hpp"

namespace kolo::tensors {

/// Lets an optimizer step the pieces of one bucket that have gradients, with the options of its
/// group `group`, by its own step() or the fused one. Its groups hold their parameters again
/// afterwards.
void step_pieces(torch::optim::Optimizer& optimizer, std::size_t group,
                 const ParameterShards& shards, std::size_t bucket, bool fused);

}  // namespace kolo::tensors
