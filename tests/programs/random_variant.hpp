#pragma once

#include "programs/program.hpp"
#include "support/random.hpp"

namespace kolo::programs {

/// Makes one of the operation's submitters submit something else under its name, or something that
/// cannot be right, so that it ends with an error on all of them. Leaves it as it is where nothing
/// fits.
void make_disagree(const Program& program, Operation& operation, simulator::Random& random);

}  // namespace kolo::programs
