// All-gather over several nodes: messages between nodes, memory inside a node.
//
// The ranks of a node have the places 0, 1, …; peers are the ranks with the same place in the other
// nodes.
//
//   1 among peers       an all-gather of their blocks, by messages
//   2 inside the node   for each node m in turn: an all-gather of the blocks of node m's ranks; the
//                       rank at place p has received that of its peer in step 1
//
//              node 0                   node 1
//           rank 0     rank 2        rank 1     rank 3       ranks may lie anywhere
//   start     A          C             B          D
//   1        A B        C D           A B        C D
//   2      A B C D    A B C D       A B C D    A B C D       each block where its rank's belongs
//
// Every block enters a node once, and all places share that work. Blocks may differ in length and
// may be empty.
//
// Bytes: a rank sends its block to each peer, and reads the blocks of all other places inside.
// Scratch: all blocks of its place. Worlds: nodes with equally many ranks, wherever these are.
#include <vector>

#include "ops/algorithms.hpp"
#include "ops/select.hpp"
#include "ops/steps/node_groups.hpp"
#include "ops/steps/transfer_scratch.hpp"
#include "ops/steps/window_pieces.hpp"

namespace kolo::ops {

Task allgather_hierarchical(CollectiveCall call) {
  NodeGroups groups(call);
  const std::vector<Range> blocks = ranges_of(call.counts);
  const std::vector<std::size_t> counts = groups.of_peers(call.counts);
  const std::vector<Range> parts = ranges_of(counts);
  TransferScratch scratch((parts.back().begin + parts.back().length) * size_of(call.dtype));

  CollectiveCall exchange = groups.across(call);
  exchange.output = scratch.data();
  exchange.counts = counts;
  scratch.set_in_use(true);
  co_await (groups.count() <= kMostDirectRanks ? allgather_pairwise : allgather_ring)(exchange);
  scratch.set_in_use(false);

  CollectiveCall gather = groups.inside(call);
  for (int node = 0; node < groups.count(); ++node) {
    const Range part = parts[static_cast<std::size_t>(node)];
    gather.input = bytes_of(call, scratch.data(), part).data();
    const std::vector<Range> of_node = groups.of_members(node, blocks);
    co_await allgather_pieces(gather, of_node);
  }
}

}  // namespace kolo::ops
