#pragma once

#include <span>

#include "kolo/algorithm.hpp"
#include "ops/kernels/pieces.hpp"

namespace kolo::ops {

/// Every rank sends a block to every other rank directly. sends[p] is the range of `call.input` for
/// rank p; receives[p] is the place of rank p's block in `call.output`. A rank's own block is
/// copied.
///
/// At step s = 1 … n-1 rank r sends to rank r+s and receives from rank r-s (mod n), so that every
/// rank has one sender and one receiver per step:
///
///   n = 4       rank 0         rank 1         rank 2         rank 3
///   step 1      to 1, of 3     to 2, of 0     to 3, of 1     to 0, of 2
///   step 2      to 2, of 2     to 3, of 3     to 0, of 0     to 1, of 1
///   step 3      to 3, of 1     to 0, of 2     to 1, of 3     to 2, of 0
///
/// Blocks are sent in segments, with a fixed number in flight, in the order of steps and segments;
/// a step does not wait for the one before it. There is no deadlock: of all transfers that have not
/// completed, the first in that order is in flight on both sides.
Task exchange_pairwise(CollectiveCall call, std::span<const Range> sends,
                       std::span<const Range> receives);

}  // namespace kolo::ops
