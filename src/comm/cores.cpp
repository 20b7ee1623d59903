#include "comm/cores.hpp"

#include <bit>
#include <cstddef>
#include <sched.h>
#include <tuple>
#include <unistd.h>

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

}  // namespace kolo::comm
