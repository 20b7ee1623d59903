#pragma once

#include <cstddef>
#include <optional>

#include "kolo/collectives.hpp"
#include "kolo/shared_buffer.hpp"

namespace kolo::tensors {

/// At least `size_bytes` of memory that the ranks of each node share, for all-gathers whose output
/// they share. Nothing, on all ranks alike, where they cannot: the set of `options` is not the
/// world, there is but one node or one rank on each, nodes have unequally many, or the system gives
/// no shared memory. Collective over the set.
std::optional<SharedBuffer> make_node_memory(std::size_t size_bytes,
                                             const OperationOptions& options);

}  // namespace kolo::tensors
