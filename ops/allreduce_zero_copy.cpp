// All-reduce of buffers that all ranks of a node can see, in place and without a copy.
//
//   1 wait until all ranks have started: their buffers hold their inputs
//   2 rank r reads piece r of all buffers, combines in rank order, writes piece r of all buffers
//   3 wait until all ranks have finished step 2
//
//   buffers     rank 0   rank 1   rank 2
//   piece 0    [  r0  ] [  r0  ] [  r0  ]      r0: read and written only by rank 0
//   piece 1    [  r1  ] [  r1  ] [  r1  ]
//   piece 2    [  r2  ] [  r2  ] [  r2  ]
//
// Only its rank accesses a piece, so step 2 needs no waits, however it is divided.
//
// Bytes: a rank reads (n-1)/n of the buffer from other ranks' memory and writes as much there.
// Worlds: any size, on one node, with `peer_buffers`.
#include "ops/algorithms.hpp"
#include "ops/kernels/kernels.hpp"
#include "ops/kernels/pieces.hpp"

namespace kolo::ops {

Task allreduce_zero_copy(CollectiveCall call) {
  if (call.count == 0) co_return;
  SharedWindow& window = *call.window;
  const std::span<const std::byte* const> inputs(call.peer_buffers.data(),
                                                 call.peer_buffers.size());
  const std::size_t element = size_of(call.dtype);
  // Pieces begin at cache lines, so that lines have one writer.
  const Range own = piece_of(call.count, window.size(), window.rank(), 64 / element);
  // No rank waits for a segment: it need only be short enough for other tasks to make progress.
  const std::size_t segment = 4 * segment_length(call);

  co_await window.all_reached(window.enter_stage());
  for (std::size_t i = 0; i < segment_count(own.length, segment); ++i) {
    if (i > 0) co_await yield();
    const Range range = segment_of(own, segment, i);
    combine(call.dtype, call.reduction, inputs, call.peer_buffers, range);
    window.count_moved(2 * (inputs.size() - 1) * range.length * element);
  }
  co_await window.all_reached(window.enter_stage());
}

}  // namespace kolo::ops
