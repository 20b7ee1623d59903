#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kolo/task.hpp"
#include "runtime/data/data_path.hpp"

/// Small numbers that the ranks of a lane must tell one another before or after the data moves.
namespace kolo::runtime {

/// Every rank's numbers, as many on all, in the order of ranks.
Task gather_numbers(const DataPath& path, const std::vector<std::size_t>& own,
                    std::vector<std::size_t>& all);

/// The first rank's numbers, as many on all.
Task broadcast_numbers(const DataPath& path, std::vector<std::uint64_t>& numbers);

/// Gives every rank the number that each has for it.
Task exchange_numbers(const DataPath& path, const std::vector<std::size_t>& sent,
                      std::vector<std::size_t>& received);

}  // namespace kolo::runtime
