#pragma once

#include <vector>

#include <mpi.h>

#include "bench/rank.hpp"
#include "bench/workload.hpp"

namespace bench {

inline int rank_in_world() {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}

inline int size_of_world() {
  int size = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  return size;
}

/// MPI's own collectives, in place and out of place, on private memory.
class MpiCases {
 public:
  /// One call per tensor; for several tensors also one call on all of them as one. Empty if MPI
  /// does not support the operation.
  std::vector<Case> make(const Workload& workload);

 private:
  Case make_case(const Workload& workload, bool in_place);
  Case make_flat(const Workload& workload);

  GrowingBuffer memory_;
};

}  // namespace bench
