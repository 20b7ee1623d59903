#pragma once

#include <functional>
#include <string>

#include <torch/nn/module.h>

#pragma GCC visibility push(default)
namespace kolo {

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

}  // namespace kolo
#pragma GCC visibility pop
