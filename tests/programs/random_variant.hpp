#pragma once

#include "programs/program.hpp"
#include "support/random.hpp"

namespace kolo::programs {

/// Makes one submitter use a different or invalid call under the operation's name, so that it fails
/// on all submitters. Leaves it unchanged if no such variant applies.
void make_disagree(const Program& program, Operation& operation, simulator::Random& random);

}  // namespace kolo::programs
