#pragma once

#include "kolo/error.hpp"

namespace kolo::runtime {

/// Thrown by a batch on all ranks alike: the batch fails with this error, and the process set goes
/// on. Any other exception concerns one rank only, which then counts as lost.
struct AgreedFailure {
  Failure failure;
};

}  // namespace kolo::runtime
