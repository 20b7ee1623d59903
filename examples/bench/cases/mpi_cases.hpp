#pragma once

#include <vector>

#include "bench/cases/case.hpp"
#include "bench/workload/growing_buffer.hpp"

namespace bench {

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
