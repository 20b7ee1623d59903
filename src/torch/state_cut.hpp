#pragma once

#include <cstdint>
#include <memory>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

namespace kolo::tensors {

/// What `state`, an optimizer's of `parameter`, is for `count` of its elements from `begin` on:
/// tensors of the parameter's shape are cut, everything else is copied. Throws InvalidArgument for
/// state that has no serialize().
std::unique_ptr<torch::optim::OptimizerParamState> cut_state(
    const torch::optim::OptimizerParamState& state, const at::Tensor& parameter, std::int64_t begin,
    std::int64_t count);

}  // namespace kolo::tensors
