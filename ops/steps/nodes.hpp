#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "kolo/algorithm.hpp"
#include "kolo/communicator.hpp"
#include "ops/kernels/pieces.hpp"

namespace kolo::ops {

#pragma GCC visibility push(default)  // libkolo.so uses it
/// Assigns the pieces of a buffer to ranks, over nodes with any number of ranks each.
///
///              node 0     node 1
///   place 0    rank 0     rank 1      piece 0
///   place 1    rank 3     rank 2      piece 1
///   place 2    rank 4                 none, as node 1 has no such place
///
/// Places follow the ranks' order in each node. A buffer has one piece per place that all nodes
/// have; ranks at other places have an empty piece.
class NodePlaces {
 public:
  /// @param node_of_rank 0, 1, …, as in Nodes
  /// @param rank this one
  NodePlaces(std::span<const int> node_of_rank, int rank);

  int node() const { return node_; }
  int node_count() const { return static_cast<int>(members_.size()); }
  int place() const { return place_; }
  /// Whether this rank has pieces.
  bool has_piece() const { return place_ < pieces_; }
  /// The ranks of this node in the order of their places.
  const std::vector<int>& neighbours() const { return members_[static_cast<std::size_t>(node_)]; }
  /// The ranks at this place of all nodes, if this rank has pieces.
  std::vector<int> peers() const;

  /// The piece of each neighbour. Pieces are consecutive, and begin at multiples of 64 bytes of
  /// float32.
  std::vector<Range> pieces(std::size_t count) const;
  Range own_piece(std::size_t count) const {
    return pieces(count)[static_cast<std::size_t>(place_)];
  }

 private:
  std::vector<std::vector<int>> members_;  // of each node
  int node_;
  int place_;
  int pieces_;
};
#pragma GCC visibility pop

/// A communicator of some ranks of another one, numbered in the order given, on which hierarchical
/// algorithms run others. It sends through its parent, under tags that nothing else uses among its
/// members, and must not outlive it. Transfers belong to the parent.
class SubCommunicator final : public Communicator {
 public:
  /// Not collective. `ranks` are those of `parent`, this one among them. Tags 0 … `tag_count` - 1
  /// become `first_tag` and the following ones.
  SubCommunicator(Communicator& parent, std::vector<int> ranks, int first_tag, int tag_count);

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(ranks_.size()); }

  Transfer send(std::span<const std::byte> data, int destination, int tag) override;
  Transfer receive(std::span<std::byte> data, int source, int tag) override;
  std::optional<Envelope> probe(int tag) override;
  /// Gives up all receives of the parent. Both lists contain ranks of the parent.
  UnderWay give_up_receives() override { return parent_.give_up_receives(); }

 private:
  // This object owns no transfers.
  bool test(std::uint64_t) override { return true; }
  void abandon(std::uint64_t) noexcept override {}

  int parent_rank(int rank) const;
  int parent_tag(int tag) const;

  Communicator& parent_;
  std::vector<int> ranks_;
  int rank_;
  int first_tag_;
  int tag_count_;
};

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
