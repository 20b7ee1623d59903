#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "bench/contestant.hpp"
#include "bench/job.hpp"
#include "bench/referee.hpp"

namespace bench {

/// One rank's part in a Job; MPI runs. All ranks make the same calls.
class Station {
 public:
  using MakeContestants = std::function<std::vector<Contestant>(const Workload&)>;

  Station(MakeContestants make_contestants, std::unique_ptr<Referee> referee);

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  GpuDescription gpu() const { return referee_->gpu(); }

  std::vector<Label> prepare(const Workload& workload);

  /// A block as this rank alone sees it.
  Block run(std::size_t contestant, int iterations);

  std::uint64_t count_wrong(std::size_t contestant);

 private:
  MakeContestants make_contestants_;
  std::unique_ptr<Referee> referee_;
  int rank_ = 0;
  int ranks_ = 1;
  Workload workload_;
  std::vector<Contestant> contestants_;
};

}  // namespace bench
