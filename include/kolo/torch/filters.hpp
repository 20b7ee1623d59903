#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

namespace kolo {

#pragma GCC visibility push(default)
/// Selects modules of a model, each with its submodules.
///
/// @param name of the module in the model, such as "blocks.3"
using ModuleFilter = std::function<bool(const std::string& name, const torch::nn::Module& module)>;

/// Selects modules of any of these classes or module holders: `kolo::modules_of<Block>()`. As
/// FSDP's ModuleWrapPolicy.
template <class... Modules>
ModuleFilter modules_of() {
  return [](const std::string&, const torch::nn::Module& module) {
    return ((module.as<Modules>() != nullptr) || ...);
  };
}

/// Selects modules whose name matches a pattern.
///
/// @param pattern `*` matches any characters except dots, `?` one character: "blocks.*"
ModuleFilter modules_named(const std::string& pattern);
#pragma GCC visibility pop

#pragma GCC visibility push(default)
/// Selects parameters.
///
/// @param name of the parameter in the model, such as "blocks.3.weight"
/// @param parameter may have no memory yet: decide by shape and dtype
using ParameterFilter = std::function<bool(const std::string& name, const at::Tensor& parameter)>;

/// Selects parameters with two or more dimensions and at least `least_elements` elements: no
/// biases, and no weights of normalization layers.
ParameterFilter matrices(std::int64_t least_elements = 0);
#pragma GCC visibility pop

}  // namespace kolo
