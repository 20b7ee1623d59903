#pragma once

#include <cstddef>

#include "comm/gpu/gpu.hpp"

namespace kolo::test {

/// The vector operations of comm::Gpu under test, from and to host memory.
class VectorOperations {
 public:
  virtual ~VectorOperations() = default;

  virtual void add_up(const comm::DeviceVectors& vectors, comm::DeviceFactors factors,
                      std::byte* to) = 0;
};

/// All floating dtypes, several numbers of vectors, odd lengths and addresses, with and without
/// factors. Expects the bits of the CPU's conversions and sums, and no change around the results.
void expect_added_up_in_order(VectorOperations& operations);

}  // namespace kolo::test
