#pragma once

#include <string>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

namespace kolo::tensors {

/// A field of the state that an optimizer keeps for a parameter: a tensor or a number.
struct StateField {
  std::string name;
  c10::IValue value;
};

/// A field that an optimizer's class is known to keep: a tensor of the parameter's shape and dtype,
/// or a number of steps.
struct KnownField {
  std::string name;
  bool is_tensor;
  bool is_optional;  ///< kept with some options only
};

/// Whether the field has one element for every element of the parameter.
inline bool is_elementwise(const StateField& field, const at::Tensor& parameter) {
  return field.value.isTensor() && field.value.toTensor().sizes() == parameter.sizes();
}

}  // namespace kolo::tensors
