#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "bench/contestants.hpp"

namespace bench {

/// What one contestant did at one size; the same on all ranks.
struct Measurement {
  std::size_t bytes;
  std::size_t count;
  std::string algorithm;
  double min_us;
  double median_us;
  double algorithm_gb_per_s;
  double bus_gb_per_s;
  std::size_t wrong_elements;  ///< on all ranks together
  double ratio_to_mpi;         ///< of the medians; below 1 is faster than MPI_Allreduce
};

/// Measures all contestants, in turns, block by block. Collective.
std::vector<Measurement> measure(const std::vector<Contestant>& contestants, const Options& options,
                                 std::size_t bytes);

}  // namespace bench
