#pragma once

#include "kolo/error.hpp"

namespace kolo::runtime {

/// Thrown while a batch runs, by all ranks alike: the batch ends in this error, and the lane goes
/// on. Whatever else is thrown there is one rank's own trouble, and the rank is lost to the others.
struct AgreedFailure {
  Failure failure;
};

}  // namespace kolo::runtime
