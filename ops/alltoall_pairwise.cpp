// All-to-all by pairwise exchange: rank r sends block p of its input to rank p directly, for all p.
//
//               rank 0         rank 1         rank 2
//   inputs      a0 a1 a2       b0 b1 b2       c0 c1 c2
//   outputs     a0 b0 c0       a1 b1 c1       a2 b2 c2
//
// Order and pace of the messages are those of exchange_pairwise, see pairwise.hpp. Blocks may have
// any length, including 0; a rank's own block is copied.
//
// Bytes: a rank sends all its blocks but its own, the minimum if ranks forward nothing, in n-1
// messages. Scratch: none. Worlds: any size.
#include <vector>

#include "ops/algorithms.hpp"
#include "ops/steps/pairwise.hpp"

namespace kolo::ops {

Task alltoall_pairwise(CollectiveCall call) {
  const std::vector<Range> sends = ranges_of(call.send_counts);
  const std::vector<Range> receives = ranges_of(call.receive_counts);
  co_await exchange_pairwise(call, sends, receives);
}

}  // namespace kolo::ops
