#pragma once

#include <nlohmann/json_fwd.hpp>

#include "shard/options.hpp"

namespace shard {

/// Trains each model of `options` in all modes in a race, each mode with its own model and
/// optimizer. Prints the results on rank 0, and returns them. `is_met`: no mode sends more than it
/// should. Collective.
nlohmann::ordered_json measure_speed(const Options& options, bool& is_met);

}  // namespace shard
