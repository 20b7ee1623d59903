#pragma once

#include <cstddef>
#include <optional>

#include "kolo/collectives.hpp"
#include "kolo/shared_buffer.hpp"

namespace kolo::train {

/// Allocates at least `size_bytes` of memory that the ranks of each node share, for all-gathers
/// into a shared output. Returns nothing, on all ranks, if they cannot: the set of `options` is not
/// the world, there is only one node or one rank per node, nodes have different numbers of ranks,
/// or the system provides no shared memory. Collective over the set.
std::optional<SharedBuffer> make_node_memory(std::size_t size_bytes,
                                             const OperationOptions& options);

}  // namespace kolo::train
