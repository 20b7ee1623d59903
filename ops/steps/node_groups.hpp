#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "kolo/algorithm.hpp"
#include "ops/steps/sub_communicator.hpp"

namespace kolo::ops {

/// The groups of ranks on which hierarchical algorithms run others: the ranks of this node, and the
/// peers, which are at the same place in the other nodes.
///
///              node 0     node 1
///   place 0    rank 0     rank 1      a row: peers, which send messages
///   place 1    rank 3     rank 2      a column: a node, whose ranks share memory
///
/// Places follow the ranks' order in each node. Ranks of one node need not be neighbours.
class NodeGroups {
 public:
  /// Throws InvalidArgument unless the call has nodes with equally many ranks and a window in each.
  explicit NodeGroups(const CollectiveCall& call);

  int count() const { return static_cast<int>(members_.size()); }
  int place() const { return place_; }
  /// The node of `rank`, and its place there.
  int node_of(int rank) const { return node_of_rank_[static_cast<std::size_t>(rank)]; }
  int place_of(int rank) const;
  /// The ranks of a node in the order of their places.
  const std::vector<int>& members(int node) const {
    return members_[static_cast<std::size_t>(node)];
  }

  /// The elements of `of_rank` for each rank of a node, in the order of places.
  template <class T>
  std::vector<T> of_members(int node, const std::vector<T>& of_rank) const {
    return pick<T>(members(node), of_rank);
  }
  /// The elements of `of_rank` for each peer, in the order of nodes; this rank is one of them.
  template <class T>
  std::vector<T> of_peers(std::span<const T> of_rank) const {
    return pick(peers(), of_rank);
  }

  /// The call among the ranks of this node, through their window.
  CollectiveCall inside(CollectiveCall call) const;
  /// The call among the peers, where node m is rank m.
  CollectiveCall across(CollectiveCall call);

 private:
  std::vector<int> peers() const;

  template <class T>
  static std::vector<T> pick(const std::vector<int>& ranks, std::span<const T> of_rank) {
    std::vector<T> picked;
    for (const int rank : ranks) picked.push_back(of_rank[static_cast<std::size_t>(rank)]);
    return picked;
  }

  std::span<const int> node_of_rank_;
  SharedWindow* window_;
  std::vector<std::vector<int>> members_;
  int place_;
  std::optional<SubCommunicator> peer_communicator_;
};

}  // namespace kolo::ops
