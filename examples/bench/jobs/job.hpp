#pragma once

#include <cstdint>
#include <vector>

#include "bench/cases/case.hpp"
#include "bench/ranks/gpu_description.hpp"
#include "bench/ranks/mpi_description.hpp"

namespace bench {

/// The times of consecutive calls of one case, over all ranks.
struct Block {
  std::vector<double> calls_us;  ///< each on its slowest rank; or only the block's mean
  double mean_us = 0;            ///< per call, on the slowest rank
  double cpu_s = 0;              ///< of all threads of all ranks, in the whole block
  double host_us = 0;            ///< per call, until it returns, on the slowest rank
};

/// The controller's view of ranks that measure together: this process and its peers, which make the
/// same calls (LocalJob), or processes that receive commands (RemoteJob). All calls block.
class Job {
 public:
  virtual ~Job() = default;

  virtual int ranks() const = 0;

  /// Rank 0's GPU, if the tensors are on GPUs.
  virtual GpuDescription gpu() const { return {}; }

  /// Rank 0's MPI, if it uses MPI.
  virtual MpiDescription mpi() const { return {}; }

  /// Selects `workload`. Returns the labels of the cases that can run it.
  virtual std::vector<Label> prepare(const Workload& workload) = 0;

  /// Runs the case whose label `prepare` returned at `case_index`, `iterations` times.
  virtual Block run(std::size_t case_index, int iterations) = 0;

  /// The number of wrong elements in the case's results, over all ranks.
  virtual std::uint64_t count_wrong(std::size_t case_index) = 0;
};

}  // namespace bench
