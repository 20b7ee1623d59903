#pragma once

#include <nlohmann/json_fwd.hpp>

#include "shard/options.hpp"

namespace shard {

/// Trains GPT medium with AdamW, and saves checkpoints of it into options.checkpoint, in turns with
/// plain write and fsync of as many bytes. Prints and returns the times of both, their ratio, and
/// the growth of peak resident memory in the first save, on the rank with most. `is_met`: it is
/// within its bound. Collective.
nlohmann::ordered_json measure_saving(const Options& options, bool& is_met);

}  // namespace shard
