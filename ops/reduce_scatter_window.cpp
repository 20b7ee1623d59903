// Reduce-scatter through shared memory: every rank combines its own piece straight from all ranks'
// slots.
//
//   1 copy in   every rank copies its chunk, a part of every piece, into its slot of the window,
//               except its own part
//   2 combine   rank r combines part r from all slots in rank order (its own from its input) into
//               its output
//
//   slots       rank 0   rank 1   rank 2
//   part 0     [     ]<--[ x1  ]<-[ x2  ]      rank 0 reads x1, x2, makes x0+x1+x2
//   part 1     [ x0  ]-->[     ]<-[ x2  ]
//   part 2     [ x0  ]-->[ x1  ]->[     ]
//
// Pieces of any length are cut into equally many parts, so that all ranks have work to the end. The
// steps of consecutive chunks overlap: in round i a rank copies chunk i in, enters a stage, and
// combines chunk i-1 while the others get there. Once all have entered the stage of round i+1, that
// is before round i+2 starts, chunk i-1 is combined everywhere: three slots are enough.
//
// A compressor is applied in the copies, so that its payload never leaves the cache.
//
// Bytes: a rank reads n-1 times its piece from other ranks' slots, and writes none there.
// Worlds: any size, on one node. The result does not depend on where chunks and pieces begin.
#include <vector>

#include "ops/algorithms.hpp"
#include "ops/steps/piecewise.hpp"
#include "ops/steps/windows.hpp"

namespace kolo::ops {
namespace {

constexpr std::size_t kReduceScatterSlots = 3;

}  // namespace

Task reduce_scatter_pieces(CollectiveCall call, std::span<const Range> pieces) {
  SharedWindow& window = *call.window;
  const int rank = window.rank();
  const std::size_t own_begin = pieces[static_cast<std::size_t>(rank)].begin;
  WindowReduction reduction(call, {pieces.begin(), pieces.end()}, kReduceScatterSlots,
                            "reduce-scatter");
  const std::size_t chunks = reduction.chunks();
  if (chunks == 0) co_return;

  const auto combine_own = [&](std::size_t chunk) {
    const Range own = reduction.part(rank, chunk);
    const Range place{own.begin - own_begin, own.length};
    reduction.combine_own(chunk, bytes_of(call, call.output, place).data(), /*keeps=*/false);
  };

  co_await window.all_reached(window.stage());
  for (std::size_t chunk = 0; chunk < chunks; ++chunk) {
    reduction.copy_in(chunk);
    const std::uint64_t stage = window.enter_stage();
    if (chunk > 0) combine_own(chunk - 1);
    co_await yield();
    co_await window.all_reached(stage);
  }
  combine_own(chunks - 1);
  window.enter_stage();
}

Task reduce_scatter_window(CollectiveCall call) {
  const std::vector<Range> pieces = ranges_of(call.counts);
  co_await reduce_scatter_pieces(call, pieces);
}

}  // namespace kolo::ops
