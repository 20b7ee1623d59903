#pragma once

#include "programs/program.hpp"
#include "support/random.hpp"

namespace kolo::programs {

/// Chooses the configuration of the ranks: settings, network, and initial process sets.
void choose_settings(Program& program, simulator::Random& random);

/// At least `least` random ranks of the program, in ascending order.
std::vector<int> random_ranks(const Program& program, int least, simulator::Random& random);

}  // namespace kolo::programs
