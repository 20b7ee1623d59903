#pragma once

#include <torch/optim/optimizer.h>

namespace kolo::train {

/// Whether fused_step supports the optimizer: LibTorch's Adam, AdamW or SGD, no derived class.
bool has_fused_step(const torch::optim::Optimizer& optimizer);

/// Does the same as optimizer.step() with LibTorch's fused kernels, which read and write everything
/// once, on the optimizer's own state. Parameters must be contiguous. Throws InvalidArgument for
/// sparse gradients, and for state whose shape or dtype differs from the parameter's.
void fused_step(torch::optim::Optimizer& optimizer);

}  // namespace kolo::train
