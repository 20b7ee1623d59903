#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "bench/cases/case.hpp"
#include "bench/jobs/job.hpp"
#include "bench/ranks/timer.hpp"

namespace bench {

/// One rank of a Job. MPI must be initialized. All ranks make the same calls.
class Worker {
 public:
  using MakeCases = std::function<std::vector<Case>(const Workload&)>;

  Worker(MakeCases make_cases, std::unique_ptr<Timer> timer);

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  GpuDescription gpu() const { return timer_->gpu(); }

  std::vector<Label> prepare(const Workload& workload);

  /// A block as measured on this rank alone.
  Block run(std::size_t case_index, int iterations);

  std::uint64_t count_wrong(std::size_t case_index);

 private:
  MakeCases make_cases_;
  std::unique_ptr<Timer> timer_;
  int rank_ = 0;
  int ranks_ = 1;
  Workload workload_;
  std::vector<Case> cases_;
};

}  // namespace bench
