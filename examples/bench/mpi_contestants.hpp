#pragma once

#include <vector>

#include "bench/arena.hpp"
#include "bench/contestant.hpp"

namespace bench {

/// MPI's own collectives, in place and out of place, on private memory.
class MpiContestants {
 public:
  /// One call for each tensor; of several tensors also one call for all of them at once. Empty
  /// where MPI has no such operation.
  std::vector<Contestant> make(const Workload& workload);

 private:
  Contestant make_one(const Workload& workload, bool in_place);
  Contestant make_flat(const Workload& workload);

  Arena memory_;
};

}  // namespace bench
