#pragma once

#include <nlohmann/json_fwd.hpp>

#include "shard/options.hpp"

namespace shard {

/// Trains each model of `options` in every mode, each with a model and an optimizer of its own, in
/// a race. Prints and returns what it has found, on rank 0. `is_met`: nothing sends more than it
/// should. Collective.
nlohmann::ordered_json measure_speed(const Options& options, bool& is_met);

}  // namespace shard
