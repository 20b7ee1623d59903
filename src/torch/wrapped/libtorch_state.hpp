#pragma once

#include <memory>
#include <vector>

#include <torch/optim/optimizer.h>

#include "torch/wrapped/state_field.hpp"

namespace kolo::tensors {

/// The fields of a state, without undefined tensors. Of LibTorch's own classes the tensors are the
/// state's; other classes are read through their serialize(), which copies. Throws InvalidArgument
/// for a class without serialize().
std::vector<StateField> fields_of(const torch::optim::OptimizerParamState& state);

/// An empty state of the class that `optimizer` keeps. Of a class that LibTorch does not know, it is
/// the state after a step of one element: a clone of another state would share the tensors that
/// serialize() may write into. Null where the optimizer keeps no state.
std::unique_ptr<torch::optim::OptimizerParamState> new_state(torch::optim::Optimizer& optimizer);

/// All fields of a state of one of LibTorch's classes; empty for other classes.
std::vector<KnownField> known_fields_of(torch::optim::OptimizerParamState& state);

/// Returns `state` with these fields. Throws InvalidArgument where the class cannot take them.
std::unique_ptr<torch::optim::OptimizerParamState> state_with(
    std::unique_ptr<torch::optim::OptimizerParamState> state,
    const std::vector<StateField>& fields);

}  // namespace kolo::tensors
