#pragma once

#include <cstdint>

#include "bench/cases/case.hpp"
#include "bench/jobs/job.hpp"
#include "bench/ranks/gpu_description.hpp"

namespace bench {

/// Times the calls of a case on one rank and checks their results; one kind for each place where
/// tensors lie. All ranks make the same calls.
class Timer {
 public:
  virtual ~Timer() = default;

  /// A block as this rank alone sees it.
  virtual Block run(const Workload& workload, const Case& bench_case, int iterations) = 0;

  /// Elements that a call on known inputs gets wrong on this rank.
  virtual std::uint64_t count_wrong(const Workload& workload, const Case& bench_case) = 0;

  /// Of this rank, where tensors lie on one.
  virtual GpuDescription gpu() const { return {}; }
};

}  // namespace bench
