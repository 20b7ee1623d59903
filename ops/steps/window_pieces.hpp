#pragma once

#include <span>

#include "kolo/algorithm.hpp"
#include "ops/kernels/pieces.hpp"

namespace kolo::ops {

/// What the forms for one node do, for pieces that need not lie one after another: what the forms
/// for several nodes are made of. `pieces` has one for each rank of `call.window`, and must live as
/// long as the task.

/// Combines every rank's piece of `call.input`; this rank's goes to the beginning of `call.output`.
Task reduce_scatter_pieces(CollectiveCall call, std::span<const Range> pieces);

/// Gathers every rank's `call.input` as its piece of `call.output`.
Task allgather_pieces(CollectiveCall call, std::span<const Range> pieces);

}  // namespace kolo::ops
