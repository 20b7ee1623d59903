#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

/// Agreement among ranks. All of these are collective.
namespace examples {

/// Each rank passes its error, or an empty text. If any rank has an error, the lowest of these
/// ranks prints its text, and all ranks get false.
bool all_ranks_succeeded(std::string_view error);

/// The ranks whose `digest` differs from that of rank 0.
std::vector<int> ranks_that_differ(std::uint64_t digest);

/// Mean of `value` over all ranks.
double mean_over_ranks(double value);
/// The same for each of several values; equally many on all ranks.
std::vector<double> mean_over_ranks(std::vector<double> values);
double largest_over_ranks(double value);

}  // namespace examples
