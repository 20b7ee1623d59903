#pragma once

#include <cstdint>

#include "programs/program.hpp"

namespace kolo::programs {

/// The program for this seed and number of ranks: about 50 operations.
Program random_program(std::uint64_t seed, int size);

/// The default number of ranks for this seed: 2, 3 or 4.
int random_size(std::uint64_t seed);

}  // namespace kolo::programs
