#pragma once

#include <cstddef>
#include <span>

#include "comm/gpu/gpu.hpp"

namespace kolo::test {

/// Gpu's operations on vectors as they are tested: all memory is the host's, by way of whatever
/// does them.
class VectorOperations {
 public:
  virtual ~VectorOperations() = default;

  virtual void add_up(const comm::DeviceVectors& vectors, comm::DeviceWeights weights,
                      std::byte* to) = 0;
  virtual void multiply_all(const comm::DeviceVectors& vectors, std::span<double> products) = 0;
};

/// All floating types, numbers of vectors, odd lengths and places, with and without weights: the
/// bits that the CPU's own conversions and sums give; what lies around must stay.
void expect_added_up_in_order(VectorOperations& operations);
/// The dot products of all pairs, twice with the same bits.
void expect_multiplied(VectorOperations& operations);

}  // namespace kolo::test
