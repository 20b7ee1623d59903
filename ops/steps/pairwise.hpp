#pragma once

#include <vector>

#include "kolo/algorithm.hpp"
#include "ops/kernels/pieces.hpp"

namespace kolo::ops {

/// Every rank sends a block to every other one directly. sends[p] is what this rank sends to rank
/// p, in elements of `call.input`; receives[p] where rank p's block belongs in `call.output`; with
/// p = rank that is a copy.
///
/// At step s = 1 … n-1 rank r sends to rank r+s and receives from rank r-s (mod n), so that in a
/// step every rank has one sender and one receiver:
///
///   n = 4       rank 0         rank 1         rank 2         rank 3
///   step 1      to 1, of 3     to 2, of 0     to 3, of 1     to 0, of 2
///   step 2      to 2, of 2     to 3, of 3     to 0, of 0     to 1, of 1
///   step 3      to 3, of 1     to 0, of 2     to 1, of 3     to 2, of 0
///
/// No step waits for the one before it: blocks travel in segments, a fixed number of which is under
/// way at a time, in the order of steps and segments. Nobody waits in a circle, since of all
/// transfers that are not done the first in that order is under way on both sides.
Task exchange_pairwise(CollectiveCall call, const std::vector<Range>& sends,
                       const std::vector<Range>& receives);

}  // namespace kolo::ops
