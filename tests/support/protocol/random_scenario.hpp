#pragma once

#include <cstdint>

#include "support/protocol/scenario.hpp"

namespace kolo::simulator {

/// The scenario of a seed: a program that all ranks have in common, made unlike on each by whatever
/// goes wrong. The grammar covers every row of the protocol's table of cases.
Scenario random_scenario(std::uint64_t seed);

}  // namespace kolo::simulator
