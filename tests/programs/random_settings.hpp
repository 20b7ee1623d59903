#pragma once

#include "programs/program.hpp"
#include "support/random.hpp"

namespace kolo::programs {

/// Fills in how the ranks are set up: settings, network, the sets that they start with.
void choose_settings(Program& program, simulator::Random& random);

/// Some ranks of the program, ascending; at least `least`.
std::vector<int> random_ranks(const Program& program, int least, simulator::Random& random);

}  // namespace kolo::programs
