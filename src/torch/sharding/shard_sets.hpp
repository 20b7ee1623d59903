#pragma once

#include <memory>
#include <string>

#include "kolo/process_set.hpp"
#include "kolo/shard.hpp"

namespace kolo::tensors {

/// The ranks among which a sharded optimizer communicates. The optimizer may outlive the Runtime.
struct ShardSets {
  std::shared_ptr<ProcessSet> sharded;   ///< the ranks that hold different shards
  std::shared_ptr<ProcessSet> replicas;  ///< those that hold this rank's shard; null: no others
};

/// Whether each rank keeps only its shard of the reduced gradients.
inline bool shards_gradients(Shard shard) { return shard >= Shard::Gradients; }

/// Why state cannot be sharded over `set` with this scope; empty if it can.
std::string problem_with_scope(const ProcessSet& set, ShardScope scope);

/// Collective over `set`, which must be the world if process sets must be added.
ShardSets make_shard_sets(ProcessSet& set, ShardScope scope);

}  // namespace kolo::tensors
