#include "comm/topology.hpp"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <sched.h>
#include <tuple>
#include <unistd.h>
#include <utility>

namespace kolo::comm {
namespace {

constexpr std::size_t kMost = 64 * std::tuple_size_v<CoreSet>;
static_assert(kMost <= CPU_SETSIZE);

void add_core(CoreSet& cores, std::size_t core) {
  cores[core / 64] |= std::uint64_t{1} << (core % 64);
}

bool contains(const CoreSet& all, const CoreSet& some) {
  for (std::size_t i = 0; i < all.size(); ++i) {
    if ((some[i] & ~all[i]) != 0) return false;
  }
  return true;
}

}  // namespace

CoreSet own_cores() {
  CoreSet cores{};
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  const bool is_known = ::sched_getaffinity(0, sizeof allowed, &allowed) == 0;
  const auto online = static_cast<std::size_t>(::sysconf(_SC_NPROCESSORS_ONLN));
  for (std::size_t core = 0; core < kMost; ++core) {
    if (is_known ? CPU_ISSET(core, &allowed) : core < online) add_core(cores, core);
  }
  return cores;
}

bool shares_cores(std::span<const CoreSet> cores_of_rank, const std::vector<int>& machine_of_rank,
                  int rank) {
  const auto own = static_cast<std::size_t>(rank);
  const CoreSet& cores = cores_of_rank[own];
  std::ptrdiff_t count = 0;
  for (const std::uint64_t word : cores) count += std::popcount(word);
  std::ptrdiff_t ranks = 0;
  for (std::size_t other = 0; other < cores_of_rank.size(); ++other) {
    ranks +=
        machine_of_rank[other] == machine_of_rank[own] && contains(cores, cores_of_rank[other]);
  }
  return ranks > count;
}

bool is_homogeneous(const std::vector<int>& node_of_rank) {
  const auto ranks_of = [&](int node) { return std::ranges::count(node_of_rank, node); };
  return std::ranges::all_of(
      node_of_rank, [&](int node) { return ranks_of(node) == ranks_of(node_of_rank.front()); });
}

std::vector<int> renumbered(std::vector<int> node_of_rank) {
  std::vector<int> seen;
  for (int& node : node_of_rank) {
    const auto found = std::find(seen.begin(), seen.end(), node);
    const int number = static_cast<int>(found - seen.begin());
    if (found == seen.end()) seen.push_back(node);
    node = number;
  }
  return node_of_rank;
}

Topology Topology::from_nodes(int rank, std::vector<int> node_of_rank) {
  Topology topology;
  topology.rank = rank;
  topology.size = static_cast<int>(node_of_rank.size());
  topology.node_of_rank = renumbered(std::move(node_of_rank));

  const auto local_rank_of = [&](int other) {
    const auto begin = topology.node_of_rank.begin();
    return static_cast<int>(
        std::count(begin, begin + other, topology.node_of_rank[static_cast<std::size_t>(other)]));
  };
  topology.local_rank = local_rank_of(rank);
  topology.local_size =
      static_cast<int>(std::count(topology.node_of_rank.begin(), topology.node_of_rank.end(),
                                  topology.node_of_rank[static_cast<std::size_t>(rank)]));
  topology.cross_rank = 0;
  topology.cross_size = 0;
  for (int other = 0; other < topology.size; ++other) {
    if (local_rank_of(other) != topology.local_rank) continue;
    ++topology.cross_size;
    if (other < rank) ++topology.cross_rank;
  }
  return topology;
}

std::vector<int> contiguous_nodes(int size, int nodes) {
  std::vector<int> node_of_rank;
  for (int rank = 0; rank < size; ++rank) {
    node_of_rank.push_back(static_cast<int>(std::int64_t{rank} * nodes / size));
  }
  return node_of_rank;
}

}  // namespace kolo::comm
