#include "support/gpu/thread_gpus.hpp"

#include <algorithm>
#include <chrono>
#include <exception>
#include <numeric>
#include <thread>

#include "base/deadline.hpp"
#include "comm/gpu/broadcast_value.hpp"
#include "kolo/error.hpp"

namespace kolo::test {
namespace {

using Kind = FakeCall::Kind;

constexpr std::size_t kScratchAlignment = 256;

const std::byte* memory_at(const void* memory) { return static_cast<const std::byte*>(memory); }
std::byte* memory_at(void* memory) { return static_cast<std::byte*>(memory); }

std::vector<std::size_t> copy_counts(std::span<const std::size_t> counts) {
  return {counts.begin(), counts.end()};
}

std::size_t align(std::size_t bytes) {
  return (bytes + kScratchAlignment - 1) / kScratchAlignment * kScratchAlignment;
}

std::size_t elements_before(const std::vector<std::size_t>& counts, std::size_t rank) {
  return std::accumulate(counts.begin(), counts.begin() + static_cast<std::ptrdiff_t>(rank),
                         std::size_t{0});
}

bool combines(const FakeCall& call) {
  return call.kind == Kind::AllReduce || call.kind == Kind::ReduceScatter;
}

/// The scratch memory that a rank needs: its result, and of a reduction all ranks' inputs.
std::size_t scratch_for(const FakeCall& call, int rank, int size) {
  const std::size_t result = align(memory_of(call, rank).output.size());
  return combines(call) ? result * static_cast<std::size_t>(size + 1) : result;
}

/// The calls with the same number in all ranks' launches, by rank. Throws if they differ.
std::vector<FakeCall> matching_calls(const ThreadGroup::Launch& launch, std::size_t number) {
  std::vector<FakeCall> calls;
  for (const auto& [rank, part] : launch.parts) {
    if (part.calls.size() != launch.parts.begin()->second.calls.size()) {
      throw BackendError("ranks disagree on the number of calls in a group: " +
                         std::to_string(launch.parts.begin()->second.calls.size()) + " and " +
                         std::to_string(part.calls.size()) + " on rank " + std::to_string(rank));
    }
    calls.push_back(part.calls[number]);
  }
  if (const std::string text = find_disagreement(calls); !text.empty()) throw BackendError(text);
  return calls;
}

}  // namespace

ThreadCommunicator::ThreadCommunicator(std::shared_ptr<ThreadGroup> group, int rank,
                                       std::shared_ptr<comm::Gpu> gpu, CombineVectors combine)
    : group_(std::move(group)), rank_(rank), gpu_(std::move(gpu)), combine_(std::move(combine)) {
  const std::lock_guard lock(group_->mutex);
  ++group_->joined;
}

ThreadCommunicator::~ThreadCommunicator() {
  if (!has_ended(std::chrono::seconds(10))) abort("the other ranks have not come that far");
  wait_for(has_written_);  // before the scratch memory is freed
}

/// Whether everything that was called has been launched.
bool ThreadCommunicator::has_ended(std::chrono::steady_clock::duration patience) {
  const Deadline deadline = Deadline::after(patience);
  while (true) {
    try {
      const std::lock_guard lock(group_->mutex);
      if (!reason_.empty()) return false;
      if (phase_ == Phase::Idle || advance()) return true;
    } catch (const std::exception&) {
      return false;
    }
    if (deadline.has_passed()) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}

bool ThreadCommunicator::ready() {
  const std::lock_guard lock(group_->mutex);
  require_alive();
  if (group_->joined < group_->size || is_collecting_) return false;
  return phase_ == Phase::Idle || advance();
}

/// Launches what can be launched now. @return whether everything has been
bool ThreadCommunicator::advance() {
  if (group_->is_aborted) return false;  // as in NCCL, whose other ranks wait until they abort, too
  ThreadGroup::Launch& launch = group_->launches.at(launches_);
  try {
    if (phase_ == Phase::Called) {
      if (launch.parts.size() == static_cast<std::size_t>(group_->size)) {
        read(launch);
        phase_ = Phase::HasRead;
      }
      return false;
    }
    const bool have_all_read =
        std::all_of(launch.parts.begin(), launch.parts.end(),
                    [](const auto& part) { return part.second.has_read != nullptr; });
    if (!have_all_read) return false;
    write(launch);
  } catch (const std::exception& error) {
    reason_ = error.what();
    throw BackendError(reason_);
  }
  phase_ = Phase::Idle;
  if (++launch.finished == group_->size) group_->launches.erase(launches_);
  ++launches_;
  return true;
}

void ThreadCommunicator::read(ThreadGroup::Launch& launch) {
  ThreadGroup::Part& own = launch.parts.at(rank_);
  std::size_t needed = 0;
  for (const FakeCall& call : own.calls) needed += scratch_for(call, rank_, group_->size);
  reserve(needed);
  for (const auto& [rank, part] : launch.parts) {
    if (rank != rank_) gpu_->wait(stream_, part.has_inputs.get());
  }
  for (std::size_t i = 0; i < own.calls.size(); ++i) read(matching_calls(launch, i));
  auto has_read = gpu_->make_event();
  gpu_->record(has_read.get(), stream_);
  own.has_read = std::move(has_read);
}

void ThreadCommunicator::read(std::span<const FakeCall> calls) {
  const auto self = static_cast<std::size_t>(rank_);
  const FakeCall& own = calls[self];
  if (combines(own)) return reduce(calls);
  if (own.kind == Kind::Broadcast && own.root == rank_) return;
  const std::size_t bytes = memory_of(own, rank_).output.size();
  std::byte* const result = take(bytes);
  std::vector<comm::DeviceRun> runs;
  std::byte* to = result;
  for (std::size_t peer = 0; peer < calls.size(); ++peer) {
    const FakeCall& other = calls[peer];
    if (own.kind == Kind::Broadcast && peer != static_cast<std::size_t>(own.root)) continue;
    const std::byte* from = other.input;
    std::size_t count = other.counts.front();
    if (own.kind == Kind::AllGather) count = other.counts[peer];
    if (own.kind == Kind::AllToAll) {
      from += elements_before(other.counts, self) * size_of(own.dtype);
      count = other.counts[self];
    }
    runs.push_back({from, to, count * size_of(own.dtype)});
    to += runs.back().count;
  }
  copy(runs);
  results_.push_back({result, own.output, bytes});
}

/// Brings all ranks' elements side by side and combines them in rank order.
void ThreadCommunicator::reduce(std::span<const FakeCall> calls) {
  const auto self = static_cast<std::size_t>(rank_);
  const FakeCall& own = calls[self];
  const bool is_scattered = own.kind == Kind::ReduceScatter;
  const std::size_t element = size_of(own.dtype);
  const std::size_t before = is_scattered ? elements_before(own.counts, self) : 0;
  const std::size_t count = own.counts[is_scattered ? self : 0];
  if (count == 0) return;
  const std::size_t stride = align(count * element);
  std::byte* const result = take(stride);
  std::byte* const vectors = take(stride * calls.size());
  std::vector<comm::DeviceRun> runs;
  std::vector<const std::byte*> inputs;
  for (std::size_t peer = 0; peer < calls.size(); ++peer) {
    runs.push_back(
        {calls[peer].input + before * element, vectors + peer * stride, count * element});
    inputs.push_back(runs.back().to);
  }
  copy(runs);
  if (own.op == ReduceOp::Sum && is_floating(own.dtype)) {
    gpu_->add_up({vectors, own.dtype, count, stride / element, group_->size}, {}, result, stream_);
  } else {
    combine_(own.dtype, own.op, inputs, result, count, stream_);
  }
  results_.push_back({result, own.output, count * element});
}

void ThreadCommunicator::write(const ThreadGroup::Launch& launch) {
  for (const auto& [rank, part] : launch.parts) {
    if (rank != rank_) gpu_->wait(stream_, part.has_read.get());
  }
  copy(results_);
  results_.clear();
  if (has_written_ == nullptr) has_written_ = gpu_->make_event();
  gpu_->record(has_written_.get(), stream_);
}

void ThreadCommunicator::copy(std::span<const comm::DeviceRun> runs) {
  std::vector<comm::DeviceRun> filled(runs.begin(), runs.end());
  std::erase_if(filled, [](const comm::DeviceRun& run) { return run.count == 0; });
  if (!filled.empty()) gpu_->convert(filled, {DType::UInt8, DType::UInt8}, stream_);
}

/// Makes room for a launch behind the previous one, which may have been on another stream.
void ThreadCommunicator::reserve(std::size_t bytes) {
  taken_ = 0;
  if (bytes > scratch_bytes_) {
    wait_for(has_written_);
    scratch_ = gpu_->allocate(bytes);
    scratch_bytes_ = bytes;
  }
  if (has_written_ != nullptr) gpu_->wait(stream_, has_written_.get());
}

std::byte* ThreadCommunicator::take(std::size_t bytes) {
  std::byte* const memory = scratch_.get() + taken_;
  taken_ += align(bytes);
  return memory;
}

void ThreadCommunicator::all_reduce(const void* input, void* output, std::size_t count, DType dtype,
                                    ReduceOp op, comm::DeviceStream stream) {
  call({.kind = Kind::AllReduce,
        .input = memory_at(input),
        .output = memory_at(output),
        .counts = {count},
        .dtype = dtype,
        .op = op},
       stream);
}

void ThreadCommunicator::reduce_scatter(const void* input, void* output,
                                        std::span<const std::size_t> counts, DType dtype,
                                        ReduceOp op, comm::DeviceStream stream) {
  call({.kind = Kind::ReduceScatter,
        .input = memory_at(input),
        .output = memory_at(output),
        .counts = copy_counts(counts),
        .dtype = dtype,
        .op = op},
       stream);
}

void ThreadCommunicator::all_gather(const void* input, void* output,
                                    std::span<const std::size_t> counts, DType dtype,
                                    comm::DeviceStream stream) {
  call({.kind = Kind::AllGather,
        .input = memory_at(input),
        .output = memory_at(output),
        .counts = copy_counts(counts),
        .dtype = dtype},
       stream);
}

void ThreadCommunicator::broadcast(void* buffer, std::size_t count, DType dtype, int root,
                                   comm::DeviceStream stream) {
  call({.kind = Kind::Broadcast,
        .input = memory_at(buffer),
        .output = memory_at(buffer),
        .counts = {count},
        .dtype = dtype,
        .root = root},
       stream);
}

void ThreadCommunicator::all_to_all(const void* input, std::span<const std::size_t> sent,
                                    void* output, std::span<const std::size_t> received,
                                    DType dtype, comm::DeviceStream stream) {
  call({.kind = Kind::AllToAll,
        .input = memory_at(input),
        .output = memory_at(output),
        .counts = copy_counts(sent),
        .received = copy_counts(received),
        .dtype = dtype},
       stream);
}

void ThreadCommunicator::begin_group() {
  const std::lock_guard lock(group_->mutex);
  require_alive();
  is_collecting_ = true;
}

void ThreadCommunicator::end_group() {
  const std::lock_guard lock(group_->mutex);
  is_collecting_ = false;
  std::vector<FakeCall> calls = std::exchange(collected_, {});
  require_alive();
  if (!calls.empty()) launch(std::move(calls));
}

void ThreadCommunicator::call(FakeCall call, comm::DeviceStream stream) {
  const std::lock_guard lock(group_->mutex);
  require_alive();
  check_call(call, group_->size);
  if (phase_ != Phase::Idle) throw BackendError("not ready: '" + describe(call) + "' was called");
  stream_ = stream;
  if (is_collecting_) {
    collected_.push_back(std::move(call));
  } else {
    launch({std::move(call)});
  }
}

void ThreadCommunicator::launch(std::vector<FakeCall> calls) {
  ThreadGroup::Part part{.calls = std::move(calls), .has_inputs = gpu_->make_event()};
  gpu_->record(part.has_inputs.get(), stream_);
  group_->launches[launches_].parts.emplace(rank_, std::move(part));
  phase_ = Phase::Called;
}

void ThreadCommunicator::abort(const std::string& reason) noexcept {
  std::vector<std::shared_ptr<CUevent_st>> reads;
  {
    const std::lock_guard lock(group_->mutex);
    if (reason_.empty()) reason_ = reason;
    group_->is_aborted = true;
    for (const auto& [number, launch] : group_->launches) {
      for (const auto& [rank, part] : launch.parts) reads.push_back(part.has_read);
    }
  }
  for (const auto& read : reads) wait_for(read);
}

/// Waits until `event` has passed, if there is one.
void ThreadCommunicator::wait_for(const std::shared_ptr<CUevent_st>& event) {
  try {
    while (event != nullptr && !gpu_->has_passed(event.get())) std::this_thread::yield();
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): the GPU runs nothing more
  }
}

void ThreadCommunicator::require_alive() const {
  if (!reason_.empty()) throw BackendError("communicator of threads has failed: " + reason_);
}

std::uint64_t ThreadGroups::make(int size) {
  const std::lock_guard lock(mutex_);
  const std::uint64_t number = groups_.size();
  groups_.emplace(number, std::make_shared<ThreadGroup>(size));
  return number;
}

std::shared_ptr<ThreadGroup> ThreadGroups::find(std::uint64_t number) {
  const std::lock_guard lock(mutex_);
  return groups_.at(number);
}

Task ThreadGpus::connect(Communicator& communicator, int tag, comm::Gpu& gpu,
                         std::unique_ptr<comm::DeviceCommunicator>& made) {
  std::uint64_t number = 0;
  if (communicator.rank() == 0) number = groups_->make(communicator.size());
  co_await comm::broadcast_value(communicator, tag, number);
  auto joining = std::make_unique<ThreadCommunicator>(groups_->find(number), communicator.rank(),
                                                      gpus_->open(gpu.index()), combine_);
  co_await *joining;
  made = std::move(joining);
}

}  // namespace kolo::test
