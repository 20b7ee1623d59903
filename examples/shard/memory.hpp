#pragma once

#include <nlohmann/json_fwd.hpp>

#include "shard/allocations.hpp"
#include "shard/options.hpp"

namespace shard {

/// Trains a GPT with AdamW in the mode of `options`, and measures each rank's memory just before
/// the step() of the third step. Prints the results on rank 0, and returns them. `is_met`: live
/// memory is within the formulas and agrees with the kernel's count, and no more is sent than
/// expected. Collective.
nlohmann::ordered_json measure_memory(const Options& options, Allocations& allocations,
                                      bool& is_met);

}  // namespace shard
