#pragma once

#include <cstdint>

#include "bench/cases/case.hpp"
#include "bench/jobs/job.hpp"
#include "bench/ranks/gpu_description.hpp"

namespace bench {

/// Times the calls of a case on one rank and checks their results; one kind for CPU memory and one
/// for GPUs. All ranks make the same calls.
class Timer {
 public:
  virtual ~Timer() = default;

  /// A block as measured on this rank alone.
  virtual Block run(const Workload& workload, const Case& bench_case, int iterations) = 0;

  /// The number of wrong elements on this rank after a call on known inputs.
  virtual std::uint64_t count_wrong(const Workload& workload, const Case& bench_case) = 0;

  /// This rank's GPU, if the tensors are on it.
  virtual GpuDescription gpu() const { return {}; }
};

}  // namespace bench
