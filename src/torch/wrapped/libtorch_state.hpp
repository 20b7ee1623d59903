#pragma once

#include <memory>
#include <vector>

#include <torch/optim/optimizer.h>

#include "torch/wrapped/wrapped_optimizer.hpp"

namespace kolo::tensors {

/// The fields of a state, without undefined tensors. For LibTorch's own classes the tensors are the
/// state's; other classes are read through their serialize(), which copies. Throws InvalidArgument
/// for a class without serialize().
std::vector<StateField> fields_of(const torch::optim::OptimizerParamState& state);

/// An empty state of the class that `optimizer` uses; null if it keeps none. For classes not from
/// LibTorch, the state after a step on one element: a clone of another state would share tensors,
/// into which serialize() may write.
std::unique_ptr<torch::optim::OptimizerParamState> new_state(torch::optim::Optimizer& optimizer);

/// All fields of a LibTorch class; empty for other classes.
std::vector<KnownField> known_fields_of(torch::optim::OptimizerParamState& state);

/// Returns `state` with these fields. Throws InvalidArgument if the class cannot take them.
std::unique_ptr<torch::optim::OptimizerParamState> state_with(
    std::unique_ptr<torch::optim::OptimizerParamState> state,
    const std::vector<StateField>& fields);

}  // namespace kolo::tensors
