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

/// One of MPI's functions for a collective. `input` may be MPI_IN_PLACE; `count` is as in Workload.
struct MpiCall {
  const char* name;
  void (*run)(const void* input, void* output, int count, MPI_Datatype type);
};

/// MPI's own collectives, in place and out of place, on private memory.
class MpiCases {
 public:
  /// Each of MPI's functions for the operation, once per tensor; for several tensors also one call
  /// on all of them as one. Empty if MPI does not support the operation.
  std::vector<Case> make(const Workload& workload);

 private:
  void add_cases(const Workload& workload, const MpiCall& call, std::vector<Case>& cases);
  Case make_case(const Workload& workload, const MpiCall& call, bool in_place);
  Case make_flat(const Workload& workload, const MpiCall& call);

  GrowingBuffer memory_;
};

}  // namespace bench
