#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace kolo::comm {

/// Processors as the system numbers them, a bit each; those beyond 1,024 are left out.
using CoreSet = std::array<std::uint64_t, 16>;

/// Those that the calling thread may use, whoever has chosen them: the launcher, taskset, a
/// container.
CoreSet own_cores();

/// Whether more ranks of this rank's machine are confined to its cores than there are: one that
/// spins keeps the very rank that it waits for off its core.
bool shares_cores(std::span<const CoreSet> cores_of_rank, const std::vector<int>& machine_of_rank,
                  int rank);

/// Whether every node has the same number of ranks.
bool is_homogeneous(const std::vector<int>& node_of_rank);

/// The same nodes, numbered in the order of their lowest rank.
std::vector<int> renumbered(std::vector<int> node_of_rank);

/// Maps the ranks of the world to nodes. Ranks of one node share memory. `cross` numbers the ranks
/// that have the same local rank on their nodes, as in Horovod.
struct Topology {
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  int local_size = 1;
  int cross_rank = 0;
  int cross_size = 1;
  std::vector<int> node_of_rank{0};  ///< nodes are numbered in the order of their lowest rank
  std::vector<std::string> host_of_rank{};  ///< names; empty: unknown
  bool shares_cores = false;                ///< this rank, with others: see shares_cores()

  bool is_homogeneous() const { return comm::is_homogeneous(node_of_rank); }

  /// Computes all fields from the node of every rank.
  static Topology from_nodes(int rank, std::vector<int> node_of_rank);
};

/// The node of every rank if `size` ranks act as `nodes` nodes, in contiguous blocks.
std::vector<int> contiguous_nodes(int size, int nodes);

}  // namespace kolo::comm
