#include "torch/sharding/shard_sets.hpp"

#include <array>
#include <cstdint>
#include <map>
#include <vector>

#include "kolo/collectives.hpp"
#include "kolo/runtime.hpp"

namespace kolo::tensors {

std::string problem_with_scope(const ProcessSet& set, ShardScope scope) {
  if (scope == ShardScope::World) return {};
  if (set.number() != 0) {
    return "shard_scope = Node with process set " + set.name() +
           ", but Node shards the world only. Use shard_scope = World.";
  }
  if (!set.runtime().is_homogeneous()) {
    return "shard_scope = Node, but not all nodes have the same number of ranks. Start equally "
           "many on each, or use shard_scope = World.";
  }
  return {};
}

ShardSets make_shard_sets(ProcessSet& set, ShardScope scope) {
  Runtime& runtime = set.runtime();
  if (scope == ShardScope::World || runtime.cross_size() == 1)
    return {set.shared_from_this(), nullptr};
  using Place = std::array<std::int64_t, 2>;  // node, place in it
  Place own{runtime.cross_rank(), runtime.local_rank()};
  std::vector<Place> places(static_cast<std::size_t>(set.size()));
  allgather({own.data(), DType::Int64, {1, 2}, Device{}},
            [&](const auto&) { return places.data(); }, {.process_set = &set});
  std::map<std::int64_t, std::vector<int>> nodes;
  std::map<std::int64_t, std::vector<int>> replicas;
  for (std::size_t i = 0; i < places.size(); ++i) {
    nodes[places[i][0]].push_back(static_cast<int>(i));
    replicas[places[i][1]].push_back(static_cast<int>(i));
  }
  ShardSets sets;
  for (const auto& [node, ranks] : nodes) {
    ProcessSet& added = runtime.add_process_set(ranks);
    if (node == own[0]) sets.sharded = added.shared_from_this();
  }
  for (const auto& [place, ranks] : replicas) {
    ProcessSet& added = runtime.add_process_set(ranks);
    if (place == own[1]) sets.replicas = added.shared_from_this();
  }
  return sets;
}

}  // namespace kolo::tensors
