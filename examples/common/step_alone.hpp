#pragma once

#include <torch/optim/optimizer.h>

namespace examples {

/// Steps an optimizer without Kolo, as a DistributedOptimizer steps it with or without `fused`:
/// what that one is to be compared with.
void step_alone(torch::optim::Optimizer& optimizer, bool fused);

}  // namespace examples
