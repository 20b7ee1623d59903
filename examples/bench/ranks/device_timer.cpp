#include "bench/ranks/device_timer.hpp"

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "bench/ranks/process_time.hpp"
#include "bench/workload/values.hpp"

namespace bench {
namespace {

constexpr int kCallsPerLeadIn = 10;

/// `tensors` with the same offsets in `copy` that they have in `memory`.
std::vector<Tensor> moved(std::vector<Tensor> tensors, const std::byte* memory, std::byte* copy) {
  for (Tensor& tensor : tensors) {
    tensor.input = copy + (tensor.input - memory);
    tensor.output = copy + (tensor.output - memory);
  }
  return tensors;
}

}  // namespace

DeviceTimer::DeviceTimer(Gpu& gpu, const GrowingBuffer& memory, int rank, int ranks,
                         std::function<void()> barrier)
    : gpu_(gpu), memory_(memory), rank_(rank), ranks_(ranks), barrier_(std::move(barrier)) {}

Block DeviceTimer::run(const Workload&, const Case& bench_case, int iterations) {
  using Clock = std::chrono::steady_clock;
  gpu_.clear(memory_.data(), memory_.size_bytes());
  for (int i = 0; i < std::max(iterations / kCallsPerLeadIn, 1); ++i) bench_case.run();
  gpu_.synchronize();
  barrier_();
  Block block;
  const double cpu_start = process_cpu_s();
  const auto start = Clock::now();
  gpu_.start_clock();
  for (int i = 0; i < iterations; ++i) bench_case.run();
  gpu_.stop_clock();
  block.host_us =
      std::chrono::duration<double, std::micro>(Clock::now() - start).count() / iterations;
  block.mean_us = gpu_.elapsed_us() / iterations;
  block.cpu_s = process_cpu_s() - cpu_start;
  block.calls_us = {block.mean_us};
  return block;
}

std::uint64_t DeviceTimer::count_wrong(const Workload& workload, const Case& bench_case) {
  std::vector<std::byte> copy(memory_.size_bytes());
  const std::vector<Tensor> tensors = moved(bench_case.tensors, memory_.data(), copy.data());
  write_inputs(workload, tensors, rank_, ranks_);
  gpu_.upload(copy, memory_.data());
  bench_case.run();
  gpu_.download(memory_.data(), copy);
  return bench::count_wrong(workload, tensors, rank_, ranks_);
}

}  // namespace bench
