#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include <ATen/core/Tensor.h>

#pragma GCC visibility push(default)
namespace kolo {

/// Selects parameters.
///
/// @param name of the parameter in the model, such as "blocks.3.weight"
/// @param parameter may have no memory yet: decide by shape and dtype
using ParameterFilter = std::function<bool(const std::string& name, const at::Tensor& parameter)>;

/// Selects parameters with two or more dimensions and at least `least_elements` elements: no
/// biases, and no weights of normalization layers.
ParameterFilter matrices(std::int64_t least_elements = 0);

}  // namespace kolo
#pragma GCC visibility pop
