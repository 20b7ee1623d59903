#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "kolo/collectives.hpp"

namespace kolo::tensors {

/// torch::nn::utils::clip_grad_norm_ for gradients of which each rank has other elements: scales them
/// such that the norm over all ranks is at most `max_norm`, and returns the one that they had.
/// Collective; a rank may have none.
double clip_divided(const std::vector<at::Tensor>& gradients, double max_norm, double norm_type,
                    const OperationOptions& options);

}  // namespace kolo::tensors
