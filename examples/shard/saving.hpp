#pragma once

#include <nlohmann/json_fwd.hpp>

#include "shard/options.hpp"

namespace shard {

/// Trains GPT medium with AdamW, and saves checkpoints of it into options.checkpoint, in turns with
/// plain write and fsync of as many bytes. Prints and returns the times of both, their ratio, and
/// how much the largest resident memory of any rank grew by the first save. `is_met`: by no more
/// than it may. Collective.
nlohmann::ordered_json measure_saving(const Options& options, bool& is_met);

}  // namespace shard
