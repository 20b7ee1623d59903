#include "train/optimizer/step_commands.hpp"

#include "kolo/error.hpp"

namespace kolo::train {
namespace {

struct ToJson {
  nlohmann::json operator()(const GatherCommand& gather) const {
    return {{"call", "gather"},
            {"reducer", gather.reducer},
            {"unit", gather.unit},
            {"slot", gather.slot}};
  }
  nlohmann::json operator()(const PassCommand& pass) const {
    return {{"call", "pass"}, {"passes", pass.passes}};
  }
  nlohmann::json operator()(const ReduceCommand& reduce) const {
    return {{"call", "reduce"}, {"is_discarded", reduce.is_discarded}};
  }
  nlohmann::json operator()(const ClipCommand& clip) const {
    return {{"call", "clip"}, {"max_norm", clip.max_norm}, {"norm_type", clip.norm_type}};
  }
  nlohmann::json operator()(const ClipValueCommand& clip) const {
    return {{"call", "clip_value"}, {"max_value", clip.max_value}};
  }
  nlohmann::json operator()(const DropCommand& drop) const {
    return {{"call", "drop"}, {"parameters", drop.parameters}};
  }
  nlohmann::json operator()(const UnscaleCommand& unscale) const {
    return {{"call", "unscale"}, {"scale", unscale.scale}};
  }
  nlohmann::json operator()(const FindOverflowCommand&) const {
    return {{"call", "find_overflow"}};
  }
  nlohmann::json operator()(const UpdateCommand& update) const {
    return {{"call", "update"}, {"options", update.options}};
  }
  nlohmann::json operator()(const SkipCommand&) const { return {{"call", "skip"}}; }
  nlohmann::json operator()(const DiscardCommand&) const { return {{"call", "discard"}}; }
  nlohmann::json operator()(const RefuseCommand&) const { return {{"call", "refuse"}}; }
};

}  // namespace

nlohmann::json to_json(const StepCommand& command) { return std::visit(ToJson{}, command); }

StepCommand command_from(const nlohmann::json& json) {
  const std::string call = json.at("call");
  if (call == "gather") return GatherCommand{json.at("reducer"), json.at("unit"), json.at("slot")};
  if (call == "pass") return PassCommand{json.at("passes")};
  if (call == "reduce") return ReduceCommand{json.at("is_discarded")};
  if (call == "clip") return ClipCommand{json.at("max_norm"), json.at("norm_type")};
  if (call == "clip_value") return ClipValueCommand{json.at("max_value")};
  if (call == "drop") return DropCommand{json.at("parameters")};
  if (call == "unscale") return UnscaleCommand{json.at("scale")};
  if (call == "find_overflow") return FindOverflowCommand{};
  if (call == "update") return UpdateCommand{json.at("options")};
  if (call == "skip") return SkipCommand{};
  if (call == "discard") return DiscardCommand{};
  if (call == "refuse") return RefuseCommand{};
  throw InvalidArgument("DistributedOptimizer: a rank sent the unknown command '" + call +
                        "'. Start the same program on all ranks.");
}

}  // namespace kolo::train
