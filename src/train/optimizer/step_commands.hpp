#pragma once

#include <cstddef>
#include <string>
#include <variant>
#include <vector>

#include <nlohmann/json.hpp>

namespace kolo::train {

/// An operation that an active rank is about to perform on the gradients or parameters of a sharded
/// optimizer. Joined ranks perform the same on their shards.
struct GatherCommand {
  std::string reducer;  ///< the prefix of its operations' names
  std::size_t unit;
  std::size_t slot;
};
/// Every pass is reduced, and one has ended.
struct PassCommand {
  int passes;  ///< that have ended in this step, also before this rank was known to have joined
};
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
/// A call that needs all ranks.
struct RefuseCommand {};
using StepCommand = std::variant<GatherCommand, PassCommand, ReduceCommand, ClipCommand,
                                 ClipValueCommand, DropCommand, UnscaleCommand, FindOverflowCommand,
                                 UpdateCommand, SkipCommand, DiscardCommand, RefuseCommand>;

/// Serializes commands for other ranks, and the inverse.
nlohmann::json to_json(const StepCommand& command);
StepCommand command_from(const nlohmann::json& json);

}  // namespace kolo::train
