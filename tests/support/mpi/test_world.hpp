#pragma once

#include "kolo/config.hpp"
#include "kolo/runtime.hpp"

namespace kolo::test {

/// Options for a Runtime over the ranks that run the test (see MpiRanks). Needs no MPI header.
InitOptions in_test_world(Config config = Config::from_environment());

}  // namespace kolo::test
