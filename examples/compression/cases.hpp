#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "compression/options.hpp"
#include "kolo/extras/power_sgd.hpp"
#include "kolo/torch/distributed_optimizer.hpp"

namespace compression {

using Shapes = std::vector<std::vector<std::int64_t>>;

/// A way to compress gradients.
struct Case {
  std::string name;
  kolo::DistributedOptimizerOptions optimizer{};
  std::optional<kolo::PowerSgdOptions> power_sgd{};
  /// The bytes that a rank sends in a step for gradients of these shapes, by formula.
  std::function<double(const Shapes& gradients, int ranks)> bytes;
};

/// All cases, "none" first.
std::vector<Case> all_cases(const Settings& settings);
std::vector<std::string> names_of_cases();

/// "none" and the named cases; all if there are no names.
std::vector<Case> chosen_cases(const Settings& settings, const std::vector<std::string>& names);

}  // namespace compression
