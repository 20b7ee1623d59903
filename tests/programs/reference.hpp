#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "programs/program.hpp"

namespace kolo::programs {

/// What one tensor of an operation must come out as on one rank, computed from all ranks' inputs.
struct Expected {
  DType dtype = DType::Float32;
  std::vector<std::byte> bytes;
  std::vector<double> tolerance;   ///< by element; empty: exact
  std::vector<std::int64_t> rows;  ///< all-gather, all-to-all: what comes from each member
};

Expected expected_of(const Program& program, const Operation& operation, std::size_t tensor,
                     int rank);

/// Empty where `result` is what was expected; else what the first wrong element is.
std::string difference(const Expected& expected, const std::vector<std::byte>& result);

}  // namespace kolo::programs
