#pragma once

#include <utility>

#include "bench/jobs/job.hpp"
#include "bench/ranks/worker.hpp"

namespace bench {

/// The ranks of this program under one mpirun. All make the same calls and get the same results.
class LocalJob : public Job {
 public:
  explicit LocalJob(Worker worker) : worker_(std::move(worker)) {}

  int ranks() const override { return worker_.ranks(); }
  GpuDescription gpu() const override { return worker_.gpu(); }
  MpiDescription mpi() const override { return describe_mpi(); }
  std::vector<Label> prepare(const Workload& workload) override {
    return worker_.prepare(workload);
  }
  Block run(std::size_t case_index, int iterations) override;
  std::uint64_t count_wrong(std::size_t case_index) override;

 private:
  Worker worker_;
};

}  // namespace bench
