#pragma once

#include "kolo/error.hpp"

namespace kolo::runtime {

/// Thrown by a batch on all ranks: the batch fails with this error, and the process set stays
/// usable. Any other exception concerns only one rank, which then counts as lost.
struct AgreedFailure {
  Failure failure;
};

}  // namespace kolo::runtime
