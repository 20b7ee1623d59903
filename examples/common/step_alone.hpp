#pragma once

#include <torch/optim/optimizer.h>

namespace examples {

/// Steps an optimizer without Kolo, as a DistributedOptimizer with or without `fused` would: the
/// baseline of comparisons.
void step_alone(torch::optim::Optimizer& optimizer, bool fused);

}  // namespace examples
