#pragma once

#include <cstddef>
#include <string>
#include <variant>
#include <vector>

#include <nlohmann/json.hpp>

namespace kolo::tensors {

/// An operation that an active rank is about to perform on the gradients or parameters of a sharded
/// optimizer. Joined ranks perform the same on their shards.
struct GatherCommand {
  std::string batch;  ///< the prefix of its operations' names
  std::size_t unit;
  std::size_t slot;
};
/// Only if parameters are gathered on use.
struct ReduceCommand {
  bool is_discarded;  ///< a DiscardCommand follows
};
struct ClipCommand {
  double max_norm;
  double norm_type;
};
struct ClipValueCommand {
  double max_value;
};
struct DropCommand {
  std::vector<std::string> parameters;  ///< whose gradients are dropped
};
struct UnscaleCommand {
  double scale;
};
struct FindOverflowCommand {};
struct UpdateCommand {
  nlohmann::json options;  ///< of the parameter groups, as OptionSync describes them
};
struct SkipCommand {};
struct DiscardCommand {};
using StepCommand =
    std::variant<GatherCommand, ReduceCommand, ClipCommand, ClipValueCommand, DropCommand,
                 UnscaleCommand, FindOverflowCommand, UpdateCommand, SkipCommand, DiscardCommand>;

/// Serializes commands for other ranks, and the inverse.
nlohmann::json to_json(const StepCommand& command);
StepCommand command_from(const nlohmann::json& json);

}  // namespace kolo::tensors
