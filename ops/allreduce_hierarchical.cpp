// All-reduce over several nodes: memory inside a node, messages between nodes, on all ranks at the
// same time.
//
// The buffer is cut into one piece per place. The ranks of a node have the places 0, 1, …; peers
// are the ranks with the same place in the other nodes.
//
//   1 reduce-scatter  inside the node: the rank at place p combines piece p of its node's inputs
//   2 all-reduce      among peers: the nodes' results for piece p, by messages
//   3 all-gather      inside the node: all pieces
//
//              node 0               node 1
//           rank 0   rank 1      rank 2   rank 3
//           a0 a1    b0 b1       c0 c1    d0 d1        inputs, in pieces
//   1       a0+b0    a1+b1       c0+d0    c1+d1
//   2         s0 <---- s1 -------> s0 <----> s1        place 0 with 0, place 1 with 1
//   3       s0 s1    s0 s1       s0 s1    s0 s1
//
// All places use their links simultaneously, and nothing is sent between nodes that could be
// combined inside one. Sums are in rank order inside each node, but not across nodes; all ranks
// receive the same bits. The prescale is applied in step 1, the postscale in step 2; 16-bit floats
// are rounded in between.
//
// Bytes, of N nodes with L ranks: a rank sends 2 (N-1)/N of a piece of 1/L, and reads 2 (L-1)/L of
// the buffer inside. Worlds: nodes with equally many ranks, wherever these are.
#include "ops/algorithms.hpp"
#include "ops/kernels/kernels.hpp"
#include "ops/select.hpp"
#include "ops/steps/nodes.hpp"
#include "ops/steps/piecewise.hpp"

namespace kolo::ops {

Task allreduce_hierarchical(CollectiveCall call) {
  NodeGroups groups(call);
  const int places = static_cast<int>(groups.members(0).size());
  const std::vector<Range> pieces = pieces_of(call.count, places, 64 / size_of(call.dtype));
  const Range own = pieces[static_cast<std::size_t>(groups.place())];
  std::byte* piece = bytes_of(call, call.output, own).data();

  CollectiveCall scatter = groups.inside(call);
  scatter.output = piece;
  scatter.reduction = with_scales(call.reduction, call.reduction.prescale, 1.0);
  co_await reduce_scatter_pieces(scatter, pieces);

  CollectiveCall exchange = groups.across(call);
  exchange.input = exchange.output = piece;
  exchange.count = own.length;
  exchange.reduction = with_scales(call.reduction, 1.0, call.reduction.postscale);
  co_await (groups.count() <= kMaxDirectRanks ? allreduce_direct : allreduce_ring)(exchange);

  CollectiveCall gather = groups.inside(call);
  gather.input = piece;
  co_await allgather_pieces(gather, pieces);
}

}  // namespace kolo::ops
