#pragma once

#include "bench/ranks/timer.hpp"

namespace bench {

/// For tensors in the CPU's memory: the clock runs around each call, and what a call took has ended
/// when it returns. MPI runs.
class HostTimer final : public Timer {
 public:
  HostTimer();

  /// Every rank writes all of its input before each call, as programs do: otherwise what a rank
  /// wrote last time would still lie in its own cache.
  Block run(const Workload& workload, const Case& bench_case, int iterations) override;
  std::uint64_t count_wrong(const Workload& workload, const Case& bench_case) override;

 private:
  int rank_ = 0;
  int ranks_ = 1;
};

}  // namespace bench
