#include "bench/device_referee.hpp"

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "bench/process_time.hpp"
#include "bench/values.hpp"

namespace bench {
namespace {

constexpr int kCallsPerLeadIn = 10;

/// Where `tensors` would lie if their memory were `copy`.
std::vector<Tensor> moved(std::vector<Tensor> tensors, const std::byte* memory, std::byte* copy) {
  for (Tensor& tensor : tensors) {
    tensor.input = copy + (tensor.input - memory);
    tensor.output = copy + (tensor.output - memory);
  }
  return tensors;
}

}  // namespace

DeviceReferee::DeviceReferee(Gpu& gpu, const Arena& memory, int rank, int ranks,
                             std::function<void()> meet)
    : gpu_(gpu), memory_(memory), rank_(rank), ranks_(ranks), meet_(std::move(meet)) {}

Block DeviceReferee::run(const Workload&, const Contestant& contestant, int iterations) {
  using Clock = std::chrono::steady_clock;
  gpu_.clear(memory_.data(), memory_.size_bytes());
  for (int i = 0; i < std::max(iterations / kCallsPerLeadIn, 1); ++i) contestant.run();
  gpu_.synchronize();
  meet_();
  Block block;
  const double cpu_start = process_cpu_s();
  const auto start = Clock::now();
  gpu_.start_clock();
  for (int i = 0; i < iterations; ++i) contestant.run();
  gpu_.stop_clock();
  block.host_us =
      std::chrono::duration<double, std::micro>(Clock::now() - start).count() / iterations;
  block.mean_us = gpu_.elapsed_us() / iterations;
  block.cpu_s = process_cpu_s() - cpu_start;
  block.calls_us = {block.mean_us};
  return block;
}

std::uint64_t DeviceReferee::count_wrong(const Workload& workload, const Contestant& contestant) {
  std::vector<std::byte> copy(memory_.size_bytes());
  const std::vector<Tensor> tensors = moved(contestant.tensors, memory_.data(), copy.data());
  write_inputs(workload, tensors, rank_, ranks_);
  gpu_.upload(copy, memory_.data());
  contestant.run();
  gpu_.download(memory_.data(), copy);
  return bench::count_wrong(workload, tensors, rank_, ranks_);
}

}  // namespace bench
