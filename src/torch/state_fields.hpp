#pragma once

#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <torch/optim/optimizer.h>

namespace kolo::tensors {

/// One thing that an optimizer keeps of a parameter: a tensor, or a number.
struct StateField {
  std::string name;
  c10::IValue value;
};

/// Whether a field has one element for every element of the parameter.
inline bool is_elementwise(const StateField& field, const at::Tensor& parameter) {
  return field.value.isTensor() && field.value.toTensor().sizes() == parameter.sizes();
}

/// What a state of any class consists of, without tensors that are undefined. Tensors are those of the
/// state for LibTorch's own classes, copies for others, which are read through their serialize().
/// Throws InvalidArgument where there is none.
std::vector<StateField> fields_of(const torch::optim::OptimizerParamState& state);

/// A state of the class of `like`, with these fields. Throws as above.
std::unique_ptr<torch::optim::OptimizerParamState> state_with(
    const torch::optim::OptimizerParamState& like, const std::vector<StateField>& fields);

/// A state of the class that `optimizer` makes, for its fields to be replaced: a copy of one that it
/// has, or what it makes when it steps a parameter of one element. Null where it keeps none.
std::unique_ptr<torch::optim::OptimizerParamState> state_of_the_class(
    torch::optim::Optimizer& optimizer);

}  // namespace kolo::tensors
