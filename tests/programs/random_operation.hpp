#pragma once

#include "programs/program.hpp"
#include "support/random.hpp"

namespace kolo::programs {

/// A call on a process set, without a number and a name; all members submit it, and it succeeds.
Operation random_operation(const Program& program, int set, simulator::Random& random);
Operation random_operation(const Program& program, int set, Collective collective,
                           simulator::Random& random);
/// An all-reduce in a part of a SharedBuffer.
Operation random_operation_in_buffer(const Program& program, int set, int buffer,
                                     std::size_t size_bytes, simulator::Random& random);

/// Draws again what may differ from one use of a name to the next: how many rows go where.
void choose_rows(const Program& program, Operation& operation, simulator::Random& random);

DType random_dtype(const Operation& operation, simulator::Random& random);
/// Which reduction it is, before its tensors are chosen.
void choose_reduction(Operation& operation, simulator::Random& random);

}  // namespace kolo::programs
