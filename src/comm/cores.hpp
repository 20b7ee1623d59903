#pragma once

#include <array>
#include <cstdint>
#include <span>
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

}  // namespace kolo::comm
