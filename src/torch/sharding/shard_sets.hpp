#pragma once

#include <string>

#include "kolo/process_set.hpp"
#include "kolo/shard.hpp"

namespace kolo::tensors {

/// Which ranks share the shards of a sharded optimizer.
struct ShardSets {
  ProcessSet* sharded = nullptr;   ///< the ranks that hold different shards
  ProcessSet* replicas = nullptr;  ///< the ranks that hold this rank's shard; null: no others
};

/// Why state cannot be sharded over `set` with this scope; empty where it can.
std::string problem_with_scope(const ProcessSet& set, ShardScope scope);

/// Collective over `set`; over the world where process sets have to be added.
ShardSets make_shard_sets(ProcessSet& set, ShardScope scope);

}  // namespace kolo::tensors
