#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kolo/task.hpp"
#include "runtime/data/data_path.hpp"

/// Exchanges of small numbers among the ranks of a lane, such as row counts. Collective.
namespace kolo::runtime {

/// Gathers the numbers of all ranks, equally many on each, in rank order.
Task gather_numbers(const DataPath& path, const std::vector<std::size_t>& own,
                    std::vector<std::size_t>& all);

/// Sends the first rank's numbers to all ranks, in place.
Task broadcast_numbers(const DataPath& path, std::vector<std::uint64_t>& numbers);

/// Sends sent[r] to each rank r, and receives one number from each.
Task exchange_numbers(const DataPath& path, const std::vector<std::size_t>& sent,
                      std::vector<std::size_t>& received);

}  // namespace kolo::runtime
