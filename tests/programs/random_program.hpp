#pragma once

#include <cstdint>

#include "programs/program.hpp"

namespace kolo::programs {

/// The program of this seed on so many ranks: about 50 operations.
Program random_program(std::uint64_t seed, int size);

/// Of tests that do not fix it: 2, 3 or 4 ranks, by the seed.
int random_size(std::uint64_t seed);

}  // namespace kolo::programs
