#pragma once

#include <string>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

namespace kolo::tensors {

/// One entry of the state that an optimizer keeps for a parameter: a tensor or a number.
struct StateField {
  std::string name;
  c10::IValue value;
};

/// An entry that an optimizer's class is known to keep. Its tensors have the parameter's shape and
/// type, its numbers count steps.
struct KnownField {
  std::string name;
  bool is_tensor;
  bool is_optional;  ///< kept under some options of the optimizer only
};

/// Whether the field has one element for every element of the parameter.
inline bool is_elementwise(const StateField& field, const at::Tensor& parameter) {
  return field.value.isTensor() && field.value.toTensor().sizes() == parameter.sizes();
}

}  // namespace kolo::tensors
