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

/// What a state of any class consists of, without tensors that are undefined. Tensors are those of
/// the state for LibTorch's own classes, copies for others, which are read through their
/// serialize(). Throws InvalidArgument where there is none.
std::vector<StateField> fields_of(const torch::optim::OptimizerParamState& state);

/// A new state of the class that `optimizer` makes, for its fields to be given. Of a class that
/// LibTorch does not know it is what a step of one element makes: a clone would share the tensors
/// that its serialize() may write into. Null where the optimizer keeps none.
std::unique_ptr<torch::optim::OptimizerParamState> new_state(torch::optim::Optimizer& optimizer);

/// A field that LibTorch's own classes of states have. Their tensors are of the parameter's shape
/// and type, their numbers count steps.
struct KnownField {
  std::string name;
  bool is_tensor;
  bool is_optional;  ///< only some options of the optimizer make it
};

/// All fields of a state of one of LibTorch's classes; nothing for others.
std::vector<KnownField> known_fields_of(torch::optim::OptimizerParamState& state);

/// Gives these fields to a new state. Throws as above.
std::unique_ptr<torch::optim::OptimizerParamState> state_with(
    std::unique_ptr<torch::optim::OptimizerParamState> state,
    const std::vector<StateField>& fields);

}  // namespace kolo::tensors
