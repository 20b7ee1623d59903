// Reduce-scatter by direct exchange: every rank gets all others' parts of its piece.
//
//   1 contribute  every rank sends piece p of its input to rank p, for all p
//   2 combine     rank p combines piece p from all ranks, in rank order
//
// contributions.hpp has both steps and a diagram. One rank combines all inputs of an element, so
// the bits do not depend on counts and segments. Pieces longer than a segment are processed segment
// by segment; the next segment is sent while this one is combined. Counts may differ and may be 0.
//
// In place, a rank overwrites its own piece, which it does not send.
//
// Bytes: a rank sends all pieces but its own, the minimum, in n-1 messages per segment, with one
// step of latency. Scratch: 2 n segments. Worlds: any size; meant for few ranks, since all pairs
// communicate at once.
#include "ops/algorithms.hpp"
#include "ops/kernels/pieces.hpp"
#include "ops/steps/contributions.hpp"
#include "ops/steps/messages.hpp"

namespace kolo::ops {
Task reduce_scatter_direct(CollectiveCall call) {
  Contributions contributions(call, ranges_of(call.counts), kTag);
  const std::size_t segments = contributions.segments();
  if (segments > 0) contributions.start(0);
  for (std::size_t i = 0; i < segments; ++i) {
    co_await contributions.finish(i);
    if (i + 1 < segments) contributions.start(i + 1);
    const Range own{0, call.counts[static_cast<std::size_t>(call.communicator->rank())]};
    const Range place = segment_of(own, segment_length(call), i);
    contributions.combine(i, bytes_of(call, call.output, place).data());
    co_await yield();
  }
}

}  // namespace kolo::ops
