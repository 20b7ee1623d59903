// All-gather over several nodes: messages between nodes, memory inside a node.
//
// The ranks of a node have the places 0, 1, …; peers are the ranks with the same place in other
// nodes.
//
//   1 among peers       an all-gather of their blocks, by messages, to the blocks' places
//   2 inside the node   for each node m in turn: an all-gather of the blocks of node m's ranks; the
//                       rank at place p has received that of its peer in step 1
//
//              node 0                   node 1
//           rank 0     rank 2        rank 1     rank 3       ranks may lie anywhere
//   start     A          C             B          D
//   1        A B        C D           A B        C D
//   2      A B C D    A B C D       A B C D    A B C D       each block in its rank's place
//
// If the ranks of a node share their output, it is complete after step 1, and step 2 waits for
// them. Callers must ensure that no rank reads the output while others write.
//
// Every block enters a node once, and all places share that work. Blocks may differ in length and
// may be empty.
//
// Bytes: a rank sends its block to each peer, and reads the blocks of all other places inside,
// unless the output is shared. Scratch: none. Worlds: nodes with equally many ranks, wherever these
// are.
#include <vector>

#include "ops/algorithms.hpp"
#include "ops/select.hpp"
#include "ops/steps/nodes.hpp"
#include "ops/steps/piecewise.hpp"

namespace kolo::ops {

Task allgather_hierarchical(CollectiveCall call) {
  NodeGroups groups(call);
  const std::vector<Range> blocks = ranges_of(call.counts);
  const std::vector<Range> of_peers = groups.of_peers<Range>(blocks);
  const bool is_direct = groups.count() <= kMaxDirectRanks;
  co_await (is_direct ? allgather_pairwise_pieces : allgather_ring_pieces)(groups.across(call),
                                                                           of_peers);

  CollectiveCall gather = groups.inside(call);
  if (call.shares_output) {
    co_await gather.window->all_reached(gather.window->enter_stage());
    co_return;
  }
  for (int node = 0; node < groups.count(); ++node) {
    const std::vector<Range> of_node = groups.of_members(node, blocks);
    const Range own = of_node[static_cast<std::size_t>(groups.place())];
    gather.input = bytes_of(call, call.output, own).data();
    co_await allgather_pieces(gather, of_node);
  }
}

}  // namespace kolo::ops
