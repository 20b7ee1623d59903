#pragma once

#include <string>

#include "compare/largest.hpp"
#include "compare/options.hpp"
#include "kolo/shard.hpp"
#include "shard/allocations.hpp"

namespace compare {

/// Trains a new model for three steps. Collective.
MemoryUse measure_memory(shard::Allocations& allocations, const std::string& model,
                         const Size& size, kolo::Shard shard);

}  // namespace compare
