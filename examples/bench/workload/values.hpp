#pragma once

#include <cstdint>

#include "bench/cases/case.hpp"

namespace bench {

/// Writes known inputs, and overwrites outputs so that they cannot hold the results already. Inputs
/// are whole numbers from 0 to 3 that differ by rank and element, so that their sums are exact in
/// every type.
void write_inputs(const Workload& workload, const std::vector<Tensor>& tensors, int rank,
                  int ranks);

/// The number of wrong output elements after the operation on such inputs.
std::uint64_t count_wrong(const Workload& workload, const std::vector<Tensor>& tensors, int rank,
                          int ranks);

}  // namespace bench
