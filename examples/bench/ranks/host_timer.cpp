#include "bench/ranks/host_timer.hpp"

#include <chrono>
#include <cstring>

#include <mpi.h>

#include "bench/ranks/process_time.hpp"
#include "bench/workload/values.hpp"

namespace bench {
namespace {

// One warm-up call per this many measured calls. The first calls after other cases' blocks find
// cold caches, and if calls are short, little else would be measured.
constexpr int kCallsPerLeadIn = 10;

void rewrite_inputs(const Workload& workload, const Case& bench_case, int rank, int ranks) {
  if (workload.operation == Operation::Broadcast && rank != 0) return;
  for (const Tensor& tensor : bench_case.tensors) {
    std::memset(
        tensor.input, 0,
        input_count(workload.operation, tensor.count, ranks) * kolo::size_of(workload.dtype));
  }
}

}  // namespace

HostTimer::HostTimer() {
  MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks_);
}

Block HostTimer::run(const Workload& workload, const Case& bench_case, int iterations) {
  using Clock = std::chrono::steady_clock;
  const auto call = [&] {
    rewrite_inputs(workload, bench_case, rank_, ranks_);
    MPI_Barrier(MPI_COMM_WORLD);
    const auto start = Clock::now();
    bench_case.run();
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
  block.host_us = block.mean_us;
  return block;
}

std::uint64_t HostTimer::count_wrong(const Workload& workload, const Case& bench_case) {
  write_inputs(workload, bench_case.tensors, rank_, ranks_);
  bench_case.run();
  return bench::count_wrong(workload, bench_case.tensors, rank_, ranks_);
}

}  // namespace bench
