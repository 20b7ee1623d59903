#include "bench/station.hpp"

#include <utility>

#include <mpi.h>

namespace bench {

Station::Station(MakeContestants make_contestants, std::unique_ptr<Referee> referee)
    : make_contestants_(std::move(make_contestants)), referee_(std::move(referee)) {
  MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks_);
}

std::vector<Label> Station::prepare(const Workload& workload) {
  contestants_.clear();
  workload_ = workload;
  contestants_ = make_contestants_(workload_);
  std::vector<Label> labels;
  for (const Contestant& contestant : contestants_) labels.push_back(contestant.label);
  return labels;
}

Block Station::run(std::size_t index, int iterations) {
  return referee_->run(workload_, contestants_[index], iterations);
}

std::uint64_t Station::count_wrong(std::size_t index) {
  return referee_->count_wrong(workload_, contestants_[index]);
}

}  // namespace bench
