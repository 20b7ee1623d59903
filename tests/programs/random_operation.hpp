#pragma once

#include "programs/program.hpp"
#include "support/random.hpp"

namespace kolo::programs {

/// A valid call on a process set that all members submit, without a number or name.
Operation random_operation(const Program& program, int set, simulator::Random& random);
Operation random_operation(const Program& program, int set, Collective collective,
                           simulator::Random& random);
/// An all-reduce in one part of a SharedBuffer.
Operation random_operation_in_buffer(const Program& program, int set, int buffer,
                                     std::size_t size_bytes, simulator::Random& random);

/// Redraws what may change between uses of a name: how many rows each rank sends or receives.
void choose_rows(const Program& program, Operation& operation, simulator::Random& random);

DType random_dtype(const Operation& operation, simulator::Random& random);
/// Chooses the reduction, before the tensors.
void choose_reduction(Operation& operation, simulator::Random& random);

/// Makes one submitter use a different or invalid call under the operation's name, so that it fails
/// on all submitters. Leaves it unchanged if no such variant applies.
void make_disagree(const Program& program, Operation& operation, simulator::Random& random);

}  // namespace kolo::programs
