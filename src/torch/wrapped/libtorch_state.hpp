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

/// A new state with these fields, of the class that `optimizer` uses. Classes not from LibTorch are
/// known only to the optimizer, which makes one in its load(). Throws InvalidArgument if the class
/// cannot take the fields, or the optimizer has no load().
std::unique_ptr<torch::optim::OptimizerParamState> make_state(
    torch::optim::Optimizer& optimizer, const std::vector<StateField>& fields);

/// Creates the state of parameters that have none, if the class does so in its constructor and not
/// in step(), as Adagrad.
void create_expected_state(torch::optim::Optimizer& optimizer);

/// All fields of the state of a LibTorch class; empty for other classes.
std::vector<KnownField> known_fields_of(const torch::optim::Optimizer& optimizer);

}  // namespace kolo::tensors
