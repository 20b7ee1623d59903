#pragma once

#include <nlohmann/json_fwd.hpp>

#include "shard/allocations.hpp"
#include "shard/options.hpp"

namespace shard {

/// Trains a GPT with AdamW in the mode of `options`, and looks at each rank's memory just before
/// the step() of the third step. Prints, on rank 0, and returns what it has found. `is_met`: what
/// lives is what the formulas allow, and as much as the kernel says; and nothing sends more than it
/// should. Collective.
nlohmann::ordered_json measure_memory(const Options& options, Allocations& allocations,
                                      bool& is_met);

}  // namespace shard
