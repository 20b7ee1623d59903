// All-reduce by recursive halving and doubling: few steps, and no more bytes than a ring.
//
//   1 fold    if the number of ranks is not a power of two, some send their input to a neighbour
//   2 halve   a reduce-scatter: partial results of half the length at every step
//   3 double  an all-gather: whole results of double the length at every step
//   4 unfold  ranks that sent their input away receive the result
//
//   4 ranks           0          1          2          3
//   distance 2     [01..]     [01..]     [..23]     [..23]      halved
//   distance 1     [0...]     [.1..]     [..2.]     [...3]      each block is whole at one rank
//   distance 1     [01..]     [01..]     [..23]     [..23]      doubled
//   distance 2     [0123]     [0123]     [0123]     [0123]
//
// halving.hpp explains halving, doubling and folding. One rank sums each element and sends it to
// the others, so all have the same bits, in every run. The order of the sum depends on the
// element's position. 16-bit floats are rounded at every step: for a mean of them the caller
// prescales by 1/n.
//
// Bytes: all ranks together send 2 (n-1) times the buffer, as many as in a ring, in 2 log2 n steps.
// If n is a power of two, all ranks send equally much; otherwise a folded rank sends the buffer
// once, its host sends it once more than other ranks, and there are two more steps.
// Scratch: 2 segments. Worlds: any size; best for middle lengths on many ranks.
#include <vector>

#include "ops/algorithms.hpp"
#include "ops/kernels/pieces.hpp"
#include "ops/steps/halving.hpp"

namespace kolo::ops {

Task allreduce_halving_doubling(CollectiveCall call) {
  const int size = call.communicator->size();
  if (size == 1) {
    co_await allreduce_direct(call);  // no rank to exchange with
    co_return;
  }
  const Cores cores(call.communicator->rank(), size);
  std::vector<Range> blocks;
  for (int core = 0; core < cores.count(); ++core) {
    blocks.push_back(piece_of(call.count, cores.count(), core));
  }
  Halving halving(call, cores, call.output, blocks);
  co_await halving.reduce();
  co_await halving.gather();
}

}  // namespace kolo::ops
