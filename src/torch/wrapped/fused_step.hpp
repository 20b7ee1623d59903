#pragma once

#include <torch/optim/optimizer.h>

namespace kolo::tensors {

/// Whether fused_step knows the optimizer: Adam, AdamW or SGD of LibTorch, no class derived from
/// one.
bool has_fused_step(const torch::optim::Optimizer& optimizer);

/// What optimizer.step() does, by LibTorch's kernel that reads and writes everything once; state is
/// the optimizer's own. Parameters are contiguous. Throws InvalidArgument for sparse gradients, and
/// for state that is not of its parameter's shape and type.
void fused_step(torch::optim::Optimizer& optimizer);

}  // namespace kolo::tensors
