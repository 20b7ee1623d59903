#pragma once

#include <string>

#include "common/digest.hpp"

namespace examples {

/// Of the parameters of two models, on one rank.
struct TrainedDigests {
  Digest start;     ///< of the model that all ranks train, before
  Digest together;  ///< of it afterwards
  Digest alone;     ///< of the copy that each rank has trained without the others
};

/// What shows that a benchmark was fast by not training; empty if nothing does: `together` differs
/// from `start` and is the same on all ranks, and `alone` is not, as ranks have batches of their
/// own. Collective.
std::string training_error(const TrainedDigests& digests);

}  // namespace examples
