#pragma once

#include <nlohmann/json_fwd.hpp>

#include "shard/options.hpp"

namespace shard {

/// Trains each model of `options` in every mode, each with a model and an optimizer of its own: in
/// every round one step of each, in an order drawn anew, so that whatever else slows the machine
/// meets all of them. Prints and returns what it has found, on rank 0. A step's time is the mean
/// over ranks, which begin it together. `is_met`: nothing sends more than it should. Collective.
nlohmann::ordered_json measure_speed(const Options& options, bool& is_met);

}  // namespace shard
