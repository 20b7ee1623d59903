#pragma once

#include <string>

#include "common/digest.hpp"

namespace examples {

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
