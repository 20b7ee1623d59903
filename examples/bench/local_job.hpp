#pragma once

#include <utility>

#include "bench/job.hpp"
#include "bench/station.hpp"

namespace bench {

/// The ranks that run this same program under one mpirun: all of them make the same calls, and all
/// of them get the same results.
class LocalJob : public Job {
 public:
  explicit LocalJob(Station station) : station_(std::move(station)) {}

  int ranks() const override { return station_.ranks(); }
  GpuDescription gpu() const override { return station_.gpu(); }
  MpiDescription mpi() const override { return describe_mpi(); }
  std::vector<Label> prepare(const Workload& workload) override {
    return station_.prepare(workload);
  }
  Block run(std::size_t contestant, int iterations) override;
  std::uint64_t count_wrong(std::size_t contestant) override;

 private:
  Station station_;
};

}  // namespace bench
