#include "bench/gpu.hpp"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <utility>
#include <vector>

#include "bench/public_calls.hpp"
#include "bench/rank.hpp"
#include "bench/workload.hpp"

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

/// The NCCL function that is called for each tensor.
const char* name_of_call(Operation operation) {
  switch (operation) {
    case Operation::AllReduce: return "ncclAllReduce";
    case Operation::ReduceScatter: return "ncclReduceScatter";
    case Operation::AllGather: return "ncclAllGather";
    case Operation::Broadcast: return "ncclBroadcast";
    case Operation::AllToAll: return "ncclSend+ncclRecv";
  }
  return "";
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

DeviceCases::DeviceCases(const Options& options, DeviceRole role, int rank, int ranks, Gpu& gpu)
    : options_(options),
      role_(std::move(role)),
      rank_(rank),
      ranks_(ranks),
      gpu_(gpu),
      memory_([&gpu](std::size_t bytes) { return gpu.allocate(bytes); }) {
  if (role_.has_kolo) connect_kolo();
  if (!role_.nccl.empty()) raw_ = gpu.connect();
}

/// Runs before NCCL is connected: if ranks share a GPU, Kolo's error says so, NCCL's hardly does.
void DeviceCases::connect_kolo() {
  const Workload least{Operation::AllReduce, kolo::DType::Float32, {1}};
  const Layout layout = layout_of(least, true);
  const std::vector<Tensor> tensors = layout.at(memory_.reserve(layout.size_bytes));
  gpu_.clear(memory_.data(), memory_.size_bytes());
  run_group(calls_of(least, {.algorithm = "connect", .placement = kDevice}), tensors);
  gpu_.synchronize();
}

std::vector<Case> DeviceCases::make(const Workload& workload) {
  // All cases share this memory, so it must not be reallocated after the first one is made.
  std::size_t bytes = layout_of(workload, !options_.out_of_place).size_bytes;
  if (options_.is_gradients()) {
    bytes = std::max(bytes, plan_buckets(workload, true).buckets.size_bytes);
  }
  memory_.reserve(bytes);
  std::vector<Case> cases;
  for (const bool in_place : {true, false}) {
    if (!options_.wants(workload.operation, in_place)) continue;
    if (role_.has_kolo) add_kolo(workload, in_place, cases);
    if (role_.has_kolo && options_.is_gradients() && in_place) add_buckets(workload, cases);
    if (raw_ != nullptr) add_raw(workload, in_place, cases);
  }
  return cases;
}

void DeviceCases::add_kolo(const Workload& workload, bool in_place, std::vector<Case>& cases) {
  const std::vector<Tensor> tensors = layout_of(workload, in_place).at(memory_.data());
  for (const std::string& compression : options_.compressions) {
    const Label label{
        .algorithm = "", .placement = kDevice, .in_place = in_place, .compression = compression};
    add_calls(
        label, calls_of(workload, label), tensors, options_.is_gradients(),
        [this](const std::string& algorithm) { return is_wanted(algorithm); }, cases);
  }
}

void DeviceCases::add_buckets(const Workload& workload, std::vector<Case>& cases) {
  if (!is_wanted(kBuckets)) return;
  const BucketLayout layout = plan_buckets(workload, true);
  const std::vector<Tensor> buckets = layout.buckets.at(memory_.data());
  for (const std::string& compression : options_.compressions) {
    const Label label{.algorithm = kBuckets, .placement = kDevice, .compression = compression};
    cases.push_back(
        {label, layout.gradients.at(memory_.data()),
         [=, calls = calls_of(workload, label), suffixes = suffixes_of(buckets.size())] {
           run_each(calls, buckets, suffixes);
         }});
  }
}

void DeviceCases::add_raw(const Workload& workload, bool in_place, std::vector<Case>& cases) {
  std::string name = name_of_call(workload.operation);
  if (role_.nccl != kNcclBesideKolo) name += ' ' + role_.nccl;
  const auto add = [&](const std::string& suffix, const std::string& reference,
                       const Workload& what, bool as_group) {
    const std::vector<Tensor> tensors = layout_of(what, in_place).at(memory_.data());
    cases.push_back({{.algorithm = name + suffix,
                      .placement = kDevice,
                      .in_place = in_place,
                      .reference = reference},
                     tensors,
                     [=, raw = raw_.get(), operation = what.operation, dtype = what.dtype] {
                       raw->start(operation, dtype, tensors, as_group);
                     }});
  };
  if (workload.counts.size() == 1) {
    add("", role_.nccl, workload, false);
    return;
  }
  add(" each", role_.nccl, workload, false);
  add(" group", role_.nccl, workload, true);
  Workload flat = workload;
  flat.counts = {std::accumulate(flat.counts.begin(), flat.counts.end(), std::size_t{0})};
  add(" flat", kFlat, flat, false);
}

Layout DeviceCases::layout_of(const Workload& workload, bool in_place) const {
  return plan_layout(workload, in_place, rank_, ranks_);
}

Calls DeviceCases::calls_of(const Workload& workload, const Label& label) const {
  return {workload.operation,
          workload.dtype,
          ranks_,
          label.algorithm + (label.in_place ? "." : ".apart.") + label.compression,
          label.compression,
          gpu_.device(),
          gpu_.stream()};
}

bool DeviceCases::is_wanted(const std::string& algorithm) const {
  const auto& wanted = options_.algorithms;
  return wanted.empty() || std::ranges::find(wanted, algorithm) != wanted.end();
}

}  // namespace bench
