#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "programs/program.hpp"

namespace kolo::programs {

/// The results of one rank that must be the same on all ranks.
struct Outcome {
  std::vector<std::uint64_t> digests;
  std::vector<int> last_joined;
};

/// An error text if ranks differ; otherwise empty. `outcomes` is indexed by rank.
std::string disagreement(const Program& program, const std::vector<Outcome>& outcomes);

}  // namespace kolo::programs
