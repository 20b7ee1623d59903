#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "ops/kernels/pieces.hpp"

#pragma GCC visibility push(default)  // libkolo.so uses it
namespace kolo::ops {

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

}  // namespace kolo::ops
#pragma GCC visibility pop
