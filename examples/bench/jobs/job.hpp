#pragma once

#include <cstdint>
#include <vector>

#include "bench/cases/case.hpp"
#include "bench/ranks/gpu_description.hpp"
#include "bench/ranks/mpi_description.hpp"

namespace bench {

/// Calls of one case in a row, over all ranks.
struct Block {
  std::vector<double> calls_us;  ///< each on its slowest rank; or the block's mean alone
  double mean_us = 0;            ///< per call, on the rank that took longest
  double cpu_s = 0;              ///< of all threads of all ranks, with all that a block holds
  double host_us = 0;            ///< per call, until it returned, on the rank that took longest
};

/// Ranks that measure together, as the controller sees them: this process and others that do the
/// same (LocalJob), or processes that are told what to do (RemoteJob). Every call blocks.
class Job {
 public:
  virtual ~Job() = default;

  virtual int ranks() const = 0;

  /// Of rank 0, where tensors lie on one.
  virtual GpuDescription gpu() const { return {}; }

  /// Of rank 0, where MPI runs.
  virtual MpiDescription mpi() const { return {}; }

  /// Selects `workload`. Returns the labels of the cases that can do it.
  virtual std::vector<Label> prepare(const Workload& workload) = 0;

  /// Runs the case whose label `prepare` returned at `case_index`, `iterations` times.
  virtual Block run(std::size_t case_index, int iterations) = 0;

  /// The number of elements that the case gets wrong, on all ranks together.
  virtual std::uint64_t count_wrong(std::size_t case_index) = 0;
};

}  // namespace bench
