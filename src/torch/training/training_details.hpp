#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include <nlohmann/json.hpp>

#include "kolo/grad_scaler.hpp"

namespace kolo::tensors {

/// More steps than anybody takes, and far from where counting them overflows.
inline constexpr std::int64_t kMostSteps = std::int64_t{1} << 53;

/// What a checkpoint of a training run says besides the elements of its tensors.
struct TrainingDetails {
  using Number = std::variant<bool, std::int64_t, double>;
  /// What the optimizer keeps of one parameter.
  struct State {
    std::map<std::string, Number> numbers;
    std::map<std::string, bool>
        tensors;  ///< whether they have an element for each of the parameter
  };
  using Options = std::map<std::string, std::vector<double>>;

  std::int64_t steps = 0;
  std::string optimizer;            ///< its class
  std::vector<Options> groups;      ///< of each of its parameter groups
  std::vector<std::string> order;   ///< of parameters' gradients in buckets
  std::vector<std::string> sparse;  ///< parameters whose gradients are reduced as sparse ones
  std::map<std::string, std::string> extras;
  std::map<std::string, std::string> aliases;  ///< other names of tied parameters
  std::map<std::string, State> state;          ///< of parameters
  std::optional<GradScaler::State> scaler;
};

/// Throws InvalidArgument, naming the field, where one is missing, of another type, or has a value
/// that it cannot have.
TrainingDetails parse_training_details(const nlohmann::json& details);

}  // namespace kolo::tensors
