// Reduce-scatter by recursive halving: few steps, for buffers too short for a ring.
//
//   1 fold    if the number of ranks is not a power of two, some send their input to a neighbour
//   2 halve   at every step a rank sends one half of its pieces to a peer and combines the other
//             half with the peer's
//   3 unfold  ranks that sent their input away receive their piece
//
//   5 ranks          0 + 1        2        3        4
//   distance 2      [01 2..]   [01 2..]  [...34]  [...34]
//   distance 1      [01 ...]   [.. 2..]  [...3.]  [....4]     the first has two pieces, for 0 and 1
//   unfolded         0 | 1        2        3        4
//
// halving.hpp explains halving and folding. Counts may differ and may be 0: half of the ranks'
// pieces is not half of the length. The input must not change, so partial results are in scratch
// memory.
//
// The order of the sum depends on the piece; it is the same in every run. 16-bit floats are rounded
// at every step: for a mean of them the caller prescales by 1/n.
//
// Bytes: all ranks together send n-1 times the buffer, as many as in a ring, and the pieces of
// folded ranks once more, in log2 n steps and two for the fold. Scratch: a second buffer, of which
// half is used unless there is a fold or a prescale. Worlds: any size; best for short buffers on
// many ranks.
#include <cstddef>
#include <vector>

#include "ops/algorithms.hpp"
#include "ops/kernels/pieces.hpp"
#include "ops/steps/halving.hpp"
#include "ops/steps/local_steps.hpp"
#include "ops/steps/messages.hpp"

namespace kolo::ops {
namespace {

/// A core's block: its own piece, followed by that of the rank that is folded onto it.
std::vector<Range> find_blocks(const Cores& cores, const std::vector<Range>& pieces) {
  std::vector<Range> blocks;
  for (int core = 0; core < cores.count(); ++core) {
    const auto first = static_cast<std::size_t>(cores.rank_of(core));
    const auto behind = static_cast<std::size_t>(
        core + 1 < cores.count() ? cores.rank_of(core + 1) : static_cast<int>(pieces.size()));
    const Range& last = pieces[behind - 1];
    blocks.push_back({pieces[first].begin, last.begin + last.length - pieces[first].begin});
  }
  return blocks;
}

/// Every rank gets its piece, from its own `work` or from its host's.
Task hand_out(CollectiveCall call, const Cores& cores, const std::vector<Range>& pieces,
              const std::byte* work) {
  const int rank = call.communicator->rank();
  const Range own = pieces[static_cast<std::size_t>(rank)];
  if (cores.is_folded()) {
    co_await exchange(call, cores.partner(), {}, bytes_of(call, call.output, {0, own.length}));
    co_return;
  }
  co_await copy_elements(call, bytes_of(call, work, own).data(), call.output, own.length);
  if (cores.is_paired()) {
    const Range folded = pieces[static_cast<std::size_t>(cores.partner())];
    co_await exchange(call, cores.partner(), bytes_of(call, work, folded), {});
  }
}

}  // namespace

Task reduce_scatter_halving(CollectiveCall call) {
  const int size = call.communicator->size();
  if (size == 1) {
    co_await reduce_scatter_direct(call);  // no rank to exchange with
    co_return;
  }
  const Cores cores(call.communicator->rank(), size);
  const std::vector<Range> pieces = ranges_of(call.counts);
  const std::size_t all = pieces.back().begin + pieces.back().length;
  TransferScratch work(all * size_of(call.dtype));
  work.set_in_use(true);
  Halving halving(call, cores, work.data(), find_blocks(cores, pieces));
  co_await halving.reduce();
  co_await hand_out(call, cores, pieces, work.data());
  work.set_in_use(false);
}

}  // namespace kolo::ops
