#pragma once

#include <functional>
#include <string>

#include <torch/nn/module.h>

namespace kolo {

/// Whether a module, with all below it, makes a unit of Shard::Full, whose parameters are gathered
/// together. Of nested units the innermost counts; parameters outside of all make units by size, as
/// do those that several units share. As FSDP's auto_wrap_policy.
///
/// @param name of the module in the model, such as "blocks.3"
using UnitPolicy = std::function<bool(const std::string& name, const torch::nn::Module& module)>;

/// Modules of any of these classes, or of module holders: `kolo::units_of<Block>()`. As FSDP's
/// ModuleWrapPolicy.
template <class... Modules>
UnitPolicy units_of() {
  return [](const std::string&, const torch::nn::Module& module) {
    return ((module.as<Modules>() != nullptr) || ...);
  };
}

/// Modules whose name matches a pattern.
///
/// @param pattern `*` stands for any part of a name without dots, `?` for one character: "blocks.*"
UnitPolicy units_named(const std::string& pattern);

}  // namespace kolo
