#include "bench/ranks/worker.hpp"

#include <utility>

#include <mpi.h>

namespace bench {

Worker::Worker(MakeCases make_cases, std::unique_ptr<Timer> timer)
    : make_cases_(std::move(make_cases)), timer_(std::move(timer)) {
  MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks_);
}

std::vector<Label> Worker::prepare(const Workload& workload) {
  cases_.clear();
  workload_ = workload;
  cases_ = make_cases_(workload_);
  std::vector<Label> labels;
  for (const Case& each : cases_) labels.push_back(each.label);
  return labels;
}

Block Worker::run(std::size_t index, int iterations) {
  return timer_->run(workload_, cases_[index], iterations);
}

std::uint64_t Worker::count_wrong(std::size_t index) {
  return timer_->count_wrong(workload_, cases_[index]);
}

}  // namespace bench
