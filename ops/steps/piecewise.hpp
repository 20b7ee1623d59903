#pragma once

#include <span>

#include "kolo/algorithm.hpp"
#include "ops/kernels/pieces.hpp"

namespace kolo::ops {

/// Forms of algorithms for pieces that need not be contiguous, from which the hierarchical
/// algorithms are built. `pieces` has one per rank of the call, and lives as long as the task.

// Through `call.window`, whose ranks are those of the call.

/// Combines every rank's piece of `call.input`; writes this rank's to the start of `call.output`.
Task reduce_scatter_pieces(CollectiveCall call, std::span<const Range> pieces);

/// Gathers every rank's `call.input` as its piece of `call.output`.
Task allgather_pieces(CollectiveCall call, std::span<const Range> pieces);

// With messages.

/// Gathers every rank's `call.input` as its piece of `call.output`, over a ring.
Task allgather_ring_pieces(CollectiveCall call, std::span<const Range> pieces);
/// Gathers every rank's `call.input` as its piece of `call.output`, by pairwise exchange.
Task allgather_pairwise_pieces(CollectiveCall call, std::span<const Range> pieces);

}  // namespace kolo::ops
