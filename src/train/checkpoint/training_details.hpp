#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include <nlohmann/json.hpp>

#include "kolo/torch/grad_scaler.hpp"

namespace kolo::train {

/// More steps than any program takes, and far from overflow.
inline constexpr std::int64_t kMaxSteps = std::int64_t{1} << 53;

/// The contents of a training checkpoint besides tensors.
struct TrainingDetails {
  using Number = std::variant<bool, std::int64_t, double>;
  /// The optimizer's state of one parameter. `tensors` says of each whether it is elementwise.
  struct State {
    std::map<std::string, Number> numbers;
    std::map<std::string, bool> tensors;
  };
  using Options = std::map<std::string, std::vector<double>>;

  std::int64_t steps = 0;
  std::string optimizer;                          ///< its class
  std::vector<Options> groups;                    ///< of each parameter group
  std::vector<std::vector<std::string>> members;  ///< of each; none in older checkpoints
  std::vector<std::string> order;                 ///< of parameters' gradients in buckets
  std::vector<std::string> sparse;  ///< parameters whose gradients are reduced as sparse ones
  std::map<std::string, std::string> extras;
  std::map<std::string, std::string> aliases;  ///< other names of tied parameters
  std::map<std::string, State> state;          ///< of parameters
  std::optional<GradScaler::State> scaler;
  std::optional<double> loss_reference;  ///< of losses normalised by counts
  std::int64_t residual_ranks = 0;       ///< ranks that had residuals; 0: there are none
};

/// Throws InvalidArgument, naming the field, if one is missing or has a wrong type or value.
TrainingDetails parse_training_details(const nlohmann::json& details);

/// The state of a scaler among the details.
nlohmann::json describe(const GradScaler::State& state);

}  // namespace kolo::train
