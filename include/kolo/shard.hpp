#pragma once

#include <cstdint>
#include <string_view>

namespace kolo {

/// What the ranks of a set divide among themselves instead of each keeping all of it. Training
/// loops and results are the same.
enum class Shard : std::uint8_t {
  None,       ///< nothing: data-parallel training
  Optimizer,  ///< the optimizer's state, and the work of step(): ZeRO-1
  Gradients,  ///< gradients as well, as soon as they are reduced: ZeRO-2
};

/// Among which ranks.
enum class ShardScope : std::uint8_t {
  World,  ///< sharded over all ranks of the set
  Node,   ///< sharded within a node, replicated across nodes
};

/// "none", "optimizer", "gradients".
std::string_view name_of(Shard shard);

/// The inverse. Throws InvalidArgument, with the names that there are.
Shard shard_named(std::string_view name);

}  // namespace kolo
