#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "compression/options.hpp"
#include "kolo/torch/distributed_optimizer.hpp"
#include "kolo/torch/power_sgd.hpp"

namespace compression {

using Shapes = std::vector<std::vector<std::int64_t>>;

/// A way to compress gradients.
struct Case {
  std::string name;
  kolo::DistributedOptimizerOptions optimizer{};
  std::optional<kolo::PowerSgdOptions> power_sgd{};
  /// What a rank sends in a step, by the formula, for gradients of these shapes.
  std::function<double(const Shapes& gradients, int ranks)> bytes;
};

/// "none" first.
std::vector<Case> all_cases(const Settings& settings);
std::vector<std::string> names_of_cases();

/// "none", and those that are named; with no names all.
std::vector<Case> chosen_cases(const Settings& settings, const std::vector<std::string>& names);

}  // namespace compression
