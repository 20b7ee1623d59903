#pragma once

#include <string>

#include "kolo/process_set.hpp"
#include "kolo/shard.hpp"

namespace kolo::tensors {

/// Who has what of a state that ranks divide.
struct ShardSets {
  ProcessSet* divided = nullptr;   ///< ranks that have different parts
  ProcessSet* replicas = nullptr;  ///< ranks that have the same part as this one; null: no others
};

/// Why the ranks of `set` cannot divide anything in this way; empty where they can.
std::string defect_of_scope(const ProcessSet& set, ShardScope scope);

/// Collective over `set`, and where that needs new process sets over the world.
ShardSets make_shard_sets(ProcessSet& set, ShardScope scope);

}  // namespace kolo::tensors
