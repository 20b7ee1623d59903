#pragma once

#include <cstdint>
#include <memory>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

namespace kolo::tensors {

/// What the state that `optimizer` has of `parameter` is for `count` of its elements from `begin`
/// on: tensors of the parameter's shape are cut, everything else is copied. Null where there is
/// none. Throws InvalidArgument for state that has no serialize().
std::unique_ptr<torch::optim::OptimizerParamState> cut_state(torch::optim::Optimizer& optimizer,
                                                             const at::Tensor& parameter,
                                                             std::int64_t begin,
                                                             std::int64_t count);

}  // namespace kolo::tensors
