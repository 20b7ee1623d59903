#include "bench/station.hpp"

#include <chrono>
#include <cstring>
#include <ctime>
#include <utility>

#include <mpi.h>

#include "bench/values.hpp"

namespace bench {
namespace {

// The first calls after the others' turn find nothing in the caches; where calls are short they
// would be all that is measured.
constexpr int kCallsPerLeadIn = 10;

double process_cpu_s() {
  std::timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

void rewrite_inputs(const Workload& workload, const Contestant& contestant, int rank, int ranks) {
  if (workload.operation == Operation::Broadcast && rank != 0) return;
  for (const Tensor& tensor : contestant.tensors) {
    std::memset(
        tensor.input, 0,
        input_count(workload.operation, tensor.count, ranks) * kolo::size_of(workload.dtype));
  }
}

}  // namespace

Station::Station(MakeContestants make_contestants)
    : make_contestants_(std::move(make_contestants)) {
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
  using Clock = std::chrono::steady_clock;
  const Contestant& contestant = contestants_[index];
  const auto call = [&] {
    rewrite_inputs(workload_, contestant, rank_, ranks_);
    MPI_Barrier(MPI_COMM_WORLD);
    const auto start = Clock::now();
    contestant.run();
    return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
  };
  for (int i = 0; i < iterations / kCallsPerLeadIn; ++i) call();
  Block block;
  const double cpu_start = process_cpu_s();
  for (int i = 0; i < iterations; ++i) {
    block.calls_us.push_back(call());
    block.mean_us += block.calls_us.back() / iterations;
  }
  block.cpu_s = process_cpu_s() - cpu_start;
  return block;
}

std::uint64_t Station::count_wrong(std::size_t index) {
  const Contestant& contestant = contestants_[index];
  write_inputs(workload_, contestant.tensors, rank_, ranks_);
  contestant.run();
  return bench::count_wrong(workload_, contestant.tensors, rank_, ranks_);
}

}  // namespace bench
