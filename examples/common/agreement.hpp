#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

/// What ranks must agree about. All of these are collective.
namespace examples {

/// Each rank says what went wrong on it, or nothing. Where anything went wrong, the lowest such
/// rank prints its text, and every rank gets false.
bool all_ranks_succeeded(std::string_view error);

/// The ranks whose `digest` is not that of rank 0.
std::vector<int> ranks_that_differ(std::uint64_t digest);

/// Mean of `value` over all ranks.
double mean_over_ranks(double value);
/// The same for each of several values, of which every rank has equally many.
std::vector<double> mean_over_ranks(std::vector<double> values);

}  // namespace examples
