#pragma once

#include <cstdint>

#include "bench/cases/case.hpp"

namespace bench {

/// Known inputs, and outputs that do not hold the results yet. Inputs are whole numbers from 0 to 3
/// that differ per rank and element, so that their sums are exact in every type.
void write_inputs(const Workload& workload, const std::vector<Tensor>& tensors, int rank,
                  int ranks);

/// After the operation on such inputs: elements of the outputs that are not what they should be.
std::uint64_t count_wrong(const Workload& workload, const std::vector<Tensor>& tensors, int rank,
                          int ranks);

}  // namespace bench
