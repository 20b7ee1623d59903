#pragma once

#include <cstdint>
#include <string_view>

#include "kolo/check_macros.hpp"

#pragma GCC visibility push(default)
namespace kolo {

/// What is sharded over the ranks of a set instead of replicated on each of them. The training loop
/// and its results do not change.
enum class Shard : std::uint8_t {
  None,       ///< nothing: data-parallel training
  Optimizer,  ///< optimizer state and the work of step(): ZeRO-1
  Gradients,  ///< also reduced gradients: ZeRO-2
  Full,       ///< also parameters: one copy per node, or gathered when used: ZeRO-3
};

/// The ranks over which it is sharded.
enum class ShardScope : std::uint8_t {
  World,  ///< sharded over all ranks of the set
  Node,   ///< sharded within a node, replicated across nodes
};

/// "none", "optimizer", "gradients" or "full".
std::string_view name_of(Shard shard);

/// The inverse of name_of.
/// @throws InvalidArgument for any other name, listing the valid ones
Shard shard_named(std::string_view name);

}  // namespace kolo
#pragma GCC visibility pop
