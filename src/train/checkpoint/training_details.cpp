#include "train/checkpoint/training_details.hpp"

#include <cmath>

#include "checkpoint/untrusted_text.hpp"
#include "kolo/error.hpp"

namespace kolo::train {
namespace {

using Json = nlohmann::json;

std::string to_text(const Json& value) {
  if (!value.is_string()) throw InvalidArgument("a string is expected");
  return value.get<std::string>();
}

std::int64_t to_steps(const Json& value) {
  const std::int64_t steps = checkpoints::to_count(value);
  if (steps > kMaxSteps) {
    throw InvalidArgument(std::to_string(steps) + " is not a valid number of steps");
  }
  return steps;
}

bool to_bool(const Json& value) {
  if (!value.is_boolean()) throw InvalidArgument("true or false is expected");
  return value.get<bool>();
}

double to_double(const Json& value) {
  if (!value.is_number()) throw InvalidArgument("a number is expected");
  return value.get<double>();
}

TrainingDetails::Number to_number(const Json& value) {
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_number_unsigned()) return checkpoints::to_count(value);
  if (value.is_number_integer()) return value.get<std::int64_t>();
  return to_double(value);
}

template <class Convert>
auto to_list(const Json& values, Convert convert) {
  if (!values.is_array()) throw InvalidArgument("a list is expected");
  std::vector<decltype(convert(values))> list;
  for (const Json& value : values) list.push_back(convert(value));
  return list;
}

template <class Convert>
auto to_map(const Json& object, Convert convert) {
  if (!object.is_object()) throw InvalidArgument("a JSON object is expected");
  std::map<std::string, decltype(convert(object))> map;
  for (const auto& [key, value] : object.items()) {
    try {
      map.emplace(key, convert(value));
    } catch (const InvalidArgument& error) {
      throw InvalidArgument("'" + key + "': " + error.what());
    }
  }
  return map;
}

/// The field of an object, converted.
template <class Convert>
auto field(const Json& object, const char* name, Convert convert) {
  if (!object.is_object()) throw InvalidArgument("a JSON object is expected");
  const auto found = object.find(name);
  if (found == object.end()) throw InvalidArgument("it has no '" + std::string(name) + "'");
  try {
    return convert(*found);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument("'" + std::string(name) + "': " + error.what());
  }
}

TrainingDetails::Options to_options(const Json& json) {
  return to_map(json, [](const Json& values) { return to_list(values, to_double); });
}

TrainingDetails::State to_state(const Json& json) {
  return {field(json, "numbers", [](const Json& all) { return to_map(all, to_number); }),
          field(json, "tensors", [](const Json& all) { return to_map(all, to_bool); })};
}

GradScaler::State to_scaler(const Json& json) {
  const GradScaler::State state{
      field(json, "scale", to_double), field(json, "growth_factor", to_double),
      field(json, "backoff_factor", to_double), field(json, "growth_interval", to_steps),
      field(json, "growth_tracker", to_steps)};
  GradScaler().set_state(state);  // throws if it could not be restored
  return state;
}

double to_power_of_two(const Json& json) {
  const double value = to_double(json);
  if (!(value >= 1.0 && value <= 0x1p63) || value != std::exp2(std::ilogb(value))) {
    throw InvalidArgument(std::to_string(value) + " is not a power of two");
  }
  return value;
}

std::vector<std::string> to_names(const Json& json) { return to_list(json, to_text); }
std::map<std::string, std::string> to_texts(const Json& json) { return to_map(json, to_text); }

}  // namespace

TrainingDetails parse_training_details(const Json& json) {
  TrainingDetails details;
  details.steps = field(json, "steps", to_steps);
  details.optimizer = field(json, "optimizer", to_text);
  details.groups = field(json, "groups", [](const Json& all) { return to_list(all, to_options); });
  if (json.contains("members")) {
    details.members =
        field(json, "members", [](const Json& all) { return to_list(all, to_names); });
    if (details.members.size() != details.groups.size()) {
      throw InvalidArgument("'members' and 'groups' have different numbers of parameter groups");
    }
  }
  field(json, "layout", [&](const Json& layout) {
    details.order = field(layout, "order", to_names);
    details.sparse = field(layout, "sparse", to_names);
    return true;
  });
  details.extras = field(json, "extras", to_texts);
  details.aliases = field(json, "aliases", to_texts);
  details.state = field(json, "state", [](const Json& all) { return to_map(all, to_state); });
  if (json.contains("residual_ranks")) {
    details.residual_ranks = field(json, "residual_ranks", checkpoints::to_count);
  }
  if (json.contains("loss_reference")) {
    details.loss_reference = field(json, "loss_reference", to_power_of_two);
  }
  if (json.contains("scaler")) details.scaler = field(json, "scaler", to_scaler);
  return details;
}

Json describe(const GradScaler::State& state) {
  return {{"scale", state.scale},
          {"growth_factor", state.growth_factor},
          {"backoff_factor", state.backoff_factor},
          {"growth_interval", state.growth_interval},
          {"growth_tracker", state.growth_tracker}};
}

}  // namespace kolo::train
