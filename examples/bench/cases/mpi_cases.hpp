#pragma once

#include <vector>

#include "bench/cases/case.hpp"
#include "bench/workload/growing_buffer.hpp"

namespace bench {

/// MPI's own collectives, in place and out of place, on private memory.
class MpiCases {
 public:
  /// One call for each tensor; of several tensors also one call for all of them at once. Empty
  /// where MPI has no such operation.
  std::vector<Case> make(const Workload& workload);

 private:
  Case make_one(const Workload& workload, bool in_place);
  Case make_flat(const Workload& workload);

  GrowingBuffer memory_;
};

}  // namespace bench
