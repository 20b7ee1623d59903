#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "programs/program.hpp"

namespace kolo::programs {

/// The expected result of one tensor of an operation on one rank, computed from all ranks' inputs.
struct Expected {
  DType dtype = DType::Float32;
  std::vector<std::byte> bytes;
  std::vector<double> tolerance;   ///< by element; empty: the result must be exact
  std::vector<std::int64_t> rows;  ///< all-gather, all-to-all: number of rows from each member
};

Expected expected_of(const Program& program, const Operation& operation, std::size_t tensor,
                     int rank);

/// Describes the first wrong element; empty if `result` is as expected.
std::string difference(const Expected& expected, const std::vector<std::byte>& result);

}  // namespace kolo::programs
