// Broadcast over several nodes: messages between nodes, memory inside a node.
//
//   1 among the root's peers, the ranks with its place in the other nodes: a binomial tree of nodes
//   2 inside every node, from the rank that has received it in step 1
//
//           node 0        node 1        node 2
//   place 0   root -------> rank 3 -----> rank 5      step 1
//               |             |             |
//   place 1   rank 1        rank 2        rank 4      step 2
//
// Bytes: the root and its peers send the buffer once to each child in the tree, at most
// ceil(log2 N) times for N nodes; all other ranks read it once from memory and send nothing.
// Worlds: nodes with equally many ranks, wherever these are; any root.
#include "ops/algorithms.hpp"
#include "ops/steps/nodes.hpp"

namespace kolo::ops {

Task broadcast_hierarchical(CollectiveCall call) {
  NodeGroups groups(call);
  const int root_place = groups.place_of(call.root);
  if (groups.place() == root_place) {
    CollectiveCall exchange = groups.across(call);
    exchange.root = groups.node_of(call.root);
    co_await broadcast_binomial(exchange);
  }
  CollectiveCall spread = groups.inside(call);
  spread.root = root_place;
  co_await broadcast_window(spread);
}

}  // namespace kolo::ops
