// Reduce-scatter over several nodes: memory inside a node, messages between nodes.
//
// The ranks of a node have the places 0, 1, …; peers are the ranks with the same place in other
// nodes. The rank at place p is responsible for the pieces of all its peers.
//
//   1 inside the node   for each node m in turn: a reduce-scatter of the pieces of node m's ranks;
//                       the rank at place p combines the piece of its peer there
//   2 among peers       a reduce-scatter of these, by messages
//
//              node 0                   node 1
//           rank 0     rank 2        rank 1     rank 3       ranks may lie anywhere
//   1       0 and 1    2 and 3       0 and 1    2 and 3      pieces combined over the node
//   2         0          2             1          3          over both nodes
//
// Sums are in rank order inside each node, but not across nodes. The prescale is applied in step 1,
// the postscale in step 2; 16-bit floats are rounded in between.
//
// Bytes, of N nodes with L ranks: a rank sends its peers' pieces once, and reads the pieces of its
// place from each of the L-1 others inside. Scratch: all pieces of its place. Worlds: nodes with
// equally many ranks, wherever these are.
#include <vector>

#include "ops/algorithms.hpp"
#include "ops/kernels/kernels.hpp"
#include "ops/select.hpp"
#include "ops/steps/messages.hpp"
#include "ops/steps/nodes.hpp"
#include "ops/steps/piecewise.hpp"

namespace kolo::ops {

Task reduce_scatter_hierarchical(CollectiveCall call) {
  NodeGroups groups(call);
  const std::vector<Range> pieces = ranges_of(call.counts);
  const std::vector<std::size_t> counts = groups.of_peers(call.counts);
  const std::vector<Range> parts = ranges_of(counts);
  TransferScratch scratch((parts.back().begin + parts.back().length) * size_of(call.dtype));

  CollectiveCall scatter = groups.inside(call);
  scatter.reduction = with_scales(call.reduction, call.reduction.prescale, 1.0);
  for (int node = 0; node < groups.count(); ++node) {
    const Range part = parts[static_cast<std::size_t>(node)];
    scatter.output = bytes_of(call, scratch.data(), part).data();
    const std::vector<Range> of_node = groups.of_members(node, pieces);
    co_await reduce_scatter_pieces(scatter, of_node);
  }

  CollectiveCall exchange = groups.across(call);
  exchange.input = scratch.data();
  exchange.counts = counts;
  exchange.reduction = with_scales(call.reduction, 1.0, call.reduction.postscale);
  scratch.set_in_use(true);
  co_await (groups.count() <= kMaxDirectRanks ? reduce_scatter_direct
                                              : reduce_scatter_ring)(exchange);
  scratch.set_in_use(false);
}

}  // namespace kolo::ops
