#pragma once

#include <cstdint>

#include "support/protocol/scenario.hpp"

namespace kolo::simulator {

/// The scenario of a seed: a program common to all ranks, made different on each by faults. The
/// grammar covers every row of the protocol's table of cases.
Scenario random_scenario(std::uint64_t seed);

}  // namespace kolo::simulator
