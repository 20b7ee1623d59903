#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/digest.hpp"

namespace examples {

/// Agreement among ranks. All of these are collective.

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

/// Digests of the parameters of two models, on one rank.
struct TrainedDigests {
  Digest start;     ///< of the model that all ranks train, before
  Digest together;  ///< of it afterwards
  Digest alone;     ///< of the copy that each rank has trained without the others
};

/// Why a benchmark has not trained as it should; empty if it has: `together` differs from `start`
/// and is the same on all ranks, and `alone` differs between ranks, which have different batches.
/// Collective.
std::string training_error(const TrainedDigests& digests);

}  // namespace examples
