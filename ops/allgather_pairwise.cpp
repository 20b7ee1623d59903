// All-gather by pairwise exchange: every rank sends its block to every other one directly.
//
//              rank 0       rank 1       rank 2
//   start      A . .        . B .        . . C
//   step 1     A . C        A B .        . B C        rank r to rank r+1
//   step 2     A B C        A B C        A B C        rank r to rank r+2; waits for no other step
//
// Order and pace of the messages are those of exchange_pairwise, see pairwise.hpp. Blocks may
// differ in length and may be empty; a rank's own block is copied, unless it is in place already.
//
// Bytes: a rank sends its block n-1 times; all ranks together send as much as in a ring, with one
// step of latency instead of n-1. Scratch: none. Worlds: any size; best for short blocks or few
// ranks, since all pairs communicate at once.
#include <vector>

#include "ops/algorithms.hpp"
#include "ops/steps/pairwise.hpp"
#include "ops/steps/piecewise.hpp"

namespace kolo::ops {

Task allgather_pairwise_pieces(CollectiveCall call, std::span<const Range> pieces) {
  const Range own = pieces[static_cast<std::size_t>(call.communicator->rank())];
  const std::vector<Range> to_each(pieces.size(), {0, own.length});
  co_await exchange_pairwise(call, to_each, pieces);
}

Task allgather_pairwise(CollectiveCall call) {
  const std::vector<Range> blocks = ranges_of(call.counts);
  co_await allgather_pairwise_pieces(call, blocks);
}

}  // namespace kolo::ops
