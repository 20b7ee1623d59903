// All-reduce through shared memory, for buffers in any memory: staged in chunks.
//
// The buffer is divided into one piece per rank. A chunk, which has a part of every piece, passes
// through three steps. Each accesses other ranks' memory only after all ranks have finished the
// previous step:
//
//   1 copy in    every rank copies its chunk into its slot of the window, except its own part
//   2 combine    rank r combines part r of the chunk, straight from all slots in rank order (its
//                own from its input), and puts the result into place r of its slot
//   3 copy out   every rank copies the other parts' results out of the slots they were made in
//
//   slots       rank 0   rank 1   rank 2
//   part 0     [=====]<--[ x1  ]  [ x2  ]      rank 0 reads x1, x2, writes x0+x1+x2
//   part 1     [ x0  ]-->[=====]<-[ x2  ]
//   part 2     [ x0  ]   [ x1  ]->[=====]
//
// The steps of consecutive chunks overlap, so that a chunk costs one wait for the slowest rank. In
// round i a rank copies chunk i in, combines its part of chunk i-1, enters a stage, and copies
// chunk i-2 out while the others get there. Once all have entered the stage of round i+1, chunk i-2
// is out everywhere. Three slots, reused cyclically, suffice: the places that it was read from are
// written again in round i+2, with the results of chunk i+1, and only by their owner.
//
// A compressor is applied in the copies, so that its payload never leaves the cache.
//
// Bytes: a rank reads 2 (n-1)/n of the buffer from other ranks' slots, and writes none there.
// Worlds: any size, on one node. The result does not depend on where chunks and pieces begin.
#include "ops/algorithms.hpp"
#include "ops/kernels/pieces.hpp"
#include "ops/steps/windows.hpp"

namespace kolo::ops {
namespace {

constexpr std::size_t kAllreduceSlots = 3;

/// Copies out the results that the other ranks have computed.
void copy_out(const CollectiveCall& call, WindowReduction& reduction, std::size_t chunk) {
  const SharedWindow& window = *call.window;
  for (int step = 1; step < window.size(); ++step) {
    const int peer = (window.rank() + step) % window.size();  // ranks start with different peers
    reduction.copy_out(peer, chunk,
                       bytes_of(call, call.output, reduction.part(peer, chunk)).data());
  }
}

}  // namespace

Task allreduce_window(CollectiveCall call) {
  SharedWindow& window = *call.window;
  const int rank = window.rank();
  WindowReduction reduction(call,
                            pieces_of(call.count, window.size(), 64 / size_of(wire_dtype(call))),
                            kAllreduceSlots, "all-reduce");
  const std::size_t chunks = reduction.chunks();
  if (chunks == 0) co_return;

  co_await window.all_reached(window.stage());
  for (std::size_t round = 0; round <= chunks; ++round) {
    if (round < chunks) reduction.copy_in(round);
    if (round >= 1) {
      const std::size_t chunk = round - 1;
      const Range own = reduction.part(rank, chunk);
      reduction.combine_own(chunk, bytes_of(call, call.output, own).data(), /*keeps=*/true);
    }
    const std::uint64_t stage = window.enter_stage();
    if (round >= 2) copy_out(call, reduction, round - 2);
    co_await yield();
    co_await window.all_reached(stage);
  }
  copy_out(call, reduction, chunks - 1);
  window.enter_stage();
}

}  // namespace kolo::ops
