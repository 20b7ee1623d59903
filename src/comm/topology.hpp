#pragma once

#include <vector>

namespace kolo::comm {

/// Where the ranks of the world run. Ranks of one node share memory; `cross` counts the nodes that
/// a rank of the same local rank sees, as Horovod defines it.
struct Topology {
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  int local_size = 1;
  int cross_rank = 0;
  int cross_size = 1;
  std::vector<int> node_of_rank{0};  ///< nodes are numbered in the order of their lowest rank

  /// True where every node has the same number of ranks.
  bool is_homogeneous() const;
  /// True where all ranks share one node.
  bool is_single_node() const;

  /// Works all fields out from every rank's node.
  static Topology from_nodes(int rank, std::vector<int> node_of_rank);
};

/// The node of every rank where `size` ranks pretend to run on `nodes` nodes, in blocks of ranks.
std::vector<int> contiguous_nodes(int size, int nodes);

}  // namespace kolo::comm
