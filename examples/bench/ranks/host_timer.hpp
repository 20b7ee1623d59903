#pragma once

#include "bench/ranks/timer.hpp"

namespace bench {

/// Times tensors in CPU memory, each call on its own: a call has finished its work when it returns.
/// MPI must be initialized.
class HostTimer final : public Timer {
 public:
  HostTimer();

  /// Every rank rewrites its whole input before each call, as programs do. Untouched data would
  /// still be in the cache of the rank that wrote it.
  Block run(const Workload& workload, const Case& bench_case, int iterations) override;
  std::uint64_t count_wrong(const Workload& workload, const Case& bench_case) override;

 private:
  int rank_ = 0;
  int ranks_ = 1;
};

}  // namespace bench
