#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include <ATen/core/Tensor.h>

#pragma GCC visibility push(default)
namespace kolo {

/// Chooses parameters.
///
/// @param name of the parameter in the model, such as "blocks.3.weight"
/// @param parameter its elements may not be there yet: decide by shape and dtype
using ParameterFilter = std::function<bool(const std::string& name, const at::Tensor& parameter)>;

/// Parameters with two dimensions or more and at least `least_elements` elements: no biases, and no
/// weights of norms.
ParameterFilter matrices(std::int64_t least_elements = 0);

}  // namespace kolo
#pragma GCC visibility pop
