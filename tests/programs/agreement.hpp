#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "programs/program.hpp"

namespace kolo::programs {

/// What a rank saw that others must have seen alike.
struct Outcome {
  std::vector<std::uint64_t> digests;
  std::vector<int> last_joined;
};

/// Empty where all ranks, by whose number `outcomes` are listed, saw the same; else what differs.
std::string disagreement(const Program& program, const std::vector<Outcome>& outcomes);

}  // namespace kolo::programs
