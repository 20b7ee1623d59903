#pragma once

#include <vector>

namespace kolo::test {

/// Spreads `size` ranks evenly over three or two nodes, so that the ranks of a node are not all
/// neighbours; over one node if neither number divides the size.
inline std::vector<int> scattered_nodes(int size) {
  const int nodes = size % 3 == 0 ? 3 : size % 2 == 0 ? 2 : 1;
  std::vector<int> node_of_rank;
  for (int rank = 0; rank < size; ++rank) {
    const int place = rank % nodes;
    node_of_rank.push_back(rank / nodes % 2 == 0 ? place : nodes - 1 - place);
  }
  return node_of_rank;
}

}  // namespace kolo::test
