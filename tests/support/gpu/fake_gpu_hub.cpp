#include "support/gpu/fake_gpu_hub.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <optional>
#include <thread>
#include <utility>

#include "base/deadline.hpp"
#include "kolo/error.hpp"
#include "support/fake_world/fake_world.hpp"

namespace kolo::test {

FakeGpuHub::FakeGpuHub(int ranks, const FakeOptions& options)
    : late_launches_(options.late_launches),
      is_one_gpu_(options.is_one_gpu),
      streams_(ranks, options.seed),
      groups_(streams_, ranks),
      calls_(static_cast<std::size_t>(ranks)),
      allocations_(static_cast<std::size_t>(ranks)),
      resources_(static_cast<std::size_t>(ranks)),
      capacities_(static_cast<std::size_t>(ranks), std::numeric_limits<std::size_t>::max()),
      blocked_(static_cast<std::size_t>(ranks)) {}

std::shared_ptr<std::byte> FakeGpuHub::allocate(int rank, std::size_t bytes) {
  if (!has_room(rank, bytes)) {
    throw BackendError("allocate " + std::to_string(bytes) + " bytes on the fake GPU: it is full");
  }
  const std::lock_guard guard(lock_);
  streams_.require_no_failure(rank, "allocate");
  std::byte* const memory = memory_.allocate(rank, bytes);  // never used before
  resources_[static_cast<std::size_t>(rank)].bytes += memory_.block_at(memory).size();
  ++allocations_[static_cast<std::size_t>(rank)];
  return {memory, [hub = shared_from_this(), rank](std::byte* freed) { hub->free(rank, freed); }};
}

void FakeGpuHub::set_capacity(int rank, std::size_t bytes) {
  const std::lock_guard guard(lock_);
  capacities_[static_cast<std::size_t>(rank)] = bytes;
}

bool FakeGpuHub::has_room(int rank, std::size_t bytes) {
  const std::lock_guard guard(lock_);
  const auto index = static_cast<std::size_t>(rank);
  return resources_[index].bytes + bytes <= capacities_[index];
}

void FakeGpuHub::free(int rank, std::byte* memory) noexcept {
  {
    const std::lock_guard guard(lock_);
    if (streams_.has_failed(rank)) return;
    streams_.graph().free(streams_.host(rank), memory_.block_at(memory), streams_.next_order(),
                          streams_.known_to_hosts(rank));
    resources_[static_cast<std::size_t>(rank)].bytes -= memory_.block_at(memory).size();
  }
  try {
    run_until(rank, nullptr, [&] { return streams_.is_idle(rank); });
  } catch (const TimeoutError&) {
    report("free: on rank " + std::to_string(rank) + " it waits for work that does not end");
  }
  const std::lock_guard guard(lock_);
  memory_.poison(memory);
}

std::byte* FakeGpuHub::allocate_on(int rank, comm::DeviceStream stream, std::size_t bytes) {
  const std::lock_guard guard(lock_);
  std::byte* const memory = memory_.allocate(rank, bytes);
  streams_.put(rank, stream, "allocate",
               [this, block = memory_.block_at(memory),
                order = streams_.next_order()](FakeStreams::Timeline timeline) {
                 streams_.graph().allocate(timeline, block, order);
                 return true;
               });
  return memory;
}

void FakeGpuHub::free_on(int rank, std::span<const comm::DeviceStream> streams,
                         std::byte* memory) noexcept {
  const std::lock_guard guard(lock_);
  try {
    const bool is_of_one_stream = streams.size() == 1;
    const comm::DeviceStream stream =
        is_of_one_stream ? streams.front() : streams_.open_stream_behind(rank, streams);
    streams_.put(rank, stream, "free",
                 [this, block = memory_.block_at(memory), order = streams_.next_order(),
                  known = streams_.known_to_hosts(rank), memory](FakeStreams::Timeline timeline) {
                   streams_.graph().free(timeline, block, order, known);
                   memory_.poison(memory);
                   return true;
                 });
    if (!is_of_one_stream) streams_.close_stream(stream);
  } catch (const BackendError& error) {
    if (!streams_.has_failed(rank)) streams_.graph().report(std::string("free: ") + error.what());
  }
}

std::shared_ptr<CUstream_st> FakeGpuHub::make_stream(int rank) {
  const std::lock_guard guard(lock_);
  streams_.require_no_failure(rank, "make_stream");
  ++resources_[static_cast<std::size_t>(rank)].streams;
  return {streams_.open_stream(rank), [hub = shared_from_this(), rank](comm::DeviceStream stream) {
            const std::lock_guard closing(hub->lock_);
            --hub->resources_[static_cast<std::size_t>(rank)].streams;
            hub->streams_.close_stream(stream);
          }};
}

std::shared_ptr<CUevent_st> FakeGpuHub::make_event(int rank) {
  const std::lock_guard guard(lock_);
  streams_.require_no_failure(rank, "make_event");
  return {streams_.make_event(), [hub = shared_from_this()](comm::DeviceEvent event) {
            const std::lock_guard destroying(hub->lock_);
            hub->streams_.destroy_event(event);
          }};
}

void FakeGpuHub::record(int rank, comm::DeviceEvent event, comm::DeviceStream stream) {
  const std::lock_guard guard(lock_);
  check_not_captured(rank, stream, "record");
  check_not_collecting(rank, stream, "record");
  streams_.record(rank, event, stream);
}

void FakeGpuHub::wait(int rank, comm::DeviceStream stream, comm::DeviceEvent event) {
  const std::lock_guard guard(lock_);
  check_not_captured(rank, stream, "wait");
  check_not_collecting(rank, stream, "wait");
  streams_.wait(rank, stream, event);
}

std::uint64_t FakeGpuHub::steps_between(comm::DeviceEvent first, comm::DeviceEvent last) {
  const std::lock_guard lock(lock_);
  return streams_.steps_between(first, last);
}

std::shared_ptr<void> FakeGpuHub::mark(int rank, std::string name) {
  const std::lock_guard lock(lock_);
  marks_.emplace_back(rank, std::move(name));
  ++live_marks_;
  return {this, [hub = shared_from_this()](void*) {
            const std::lock_guard ending(hub->lock_);
            --hub->live_marks_;
          }};
}

int FakeGpuHub::live_marks() {
  const std::lock_guard lock(lock_);
  return live_marks_;
}

std::vector<std::string> FakeGpuHub::marks(int rank) {
  const std::lock_guard lock(lock_);
  std::vector<std::string> names;
  for (const auto& [owner, name] : marks_) {
    if (owner == rank) names.push_back(name);
  }
  return names;
}

bool FakeGpuHub::has_passed(int rank, comm::DeviceEvent event) {
  const std::lock_guard guard(lock_);
  streams_.run_some();
  return streams_.has_passed(rank, event);
}

void FakeGpuHub::kernel(int rank, comm::DeviceStream stream, FakeKernel kernel) {
  const std::lock_guard guard(lock_);
  check_not_collecting(rank, stream, kernel.name);
  if (!kernel.error.empty()) {
    streams_.put(rank, stream, std::move(kernel.name),
                 [this, rank, error = std::move(kernel.error)](FakeStreams::Timeline) {
                   streams_.fail(rank, error);
                   return false;
                 });
    return;
  }
  MemoryOperation operation{.name = std::move(kernel.name),
                            .reads = std::move(kernel.reads),
                            .writes = std::move(kernel.writes)};
  if (!check_memory(rank, operation)) {
    operation = {.name = std::move(operation.name)};
    kernel.run = [] {};
  }
  streams_.put_operation(rank, stream, std::move(operation), std::move(kernel.run));
}

void FakeGpuHub::hold(int rank, comm::DeviceStream stream,
                      std::shared_ptr<const std::atomic<bool>> may_end) {
  const std::lock_guard guard(lock_);
  streams_.put(rank, stream, "hold",
               [may_end = std::move(may_end)](FakeStreams::Timeline) { return may_end->load(); });
}

void FakeGpuHub::synchronize(int rank, comm::DeviceStream stream) {
  run_until(rank, stream, [&] { return streams_.is_done(rank, stream); });
}

void FakeGpuHub::synchronize_device(int rank) {
  run_until(rank, nullptr, [&] { return streams_.is_done(rank); });
}

void FakeGpuHub::synchronize_event(int rank, comm::DeviceEvent event) {
  run_until(rank, nullptr, [&] { return streams_.has_passed(rank, event); });
}

bool FakeGpuHub::is_done(int rank, comm::DeviceStream stream) {
  const std::lock_guard guard(lock_);
  streams_.run_some();
  return streams_.is_done(rank, stream);
}

void FakeGpuHub::drain(int rank, comm::DeviceStream stream) {
  run_until(rank, stream, [&] { return streams_.is_empty(rank, stream); });
}

void FakeGpuHub::run_until(int rank, comm::DeviceStream stream,
                           const std::function<bool()>& has_finished) {
  const Deadline deadline = Deadline::after(std::chrono::minutes(1));
  while (true) {
    {
      const std::lock_guard guard(lock_);
      streams_.run_some();
      if (has_finished()) return;
      if (deadline.has_passed()) {
        throw TimeoutError("synchronize on rank " + std::to_string(rank) +
                           ": the stream does not get beyond '" + streams_.head_of(rank, stream) +
                           "'");
      }
    }
    std::this_thread::yield();
  }
}

void FakeGpuHub::copy_to_device(int rank, ByteRange from, std::byte* to) {
  const std::lock_guard guard(lock_);
  const MemoryOperation operation{.name = "copy to device",
                                  .writes = {ByteRange(to, from.size())},
                                  .order = streams_.next_order()};
  if (!check_memory(rank, operation)) return;
  streams_.graph().operate(streams_.host(rank), operation);
  std::copy(from.begin(), from.end(), to);
}

void FakeGpuHub::copy_to_host(int rank, const std::byte* from, std::span<std::byte> to) {
  const std::lock_guard guard(lock_);
  const MemoryOperation operation{.name = "copy to host",
                                  .reads = {ByteRange(from, to.size())},
                                  .order = streams_.next_order()};
  if (!check_memory(rank, operation)) return;
  streams_.graph().operate(streams_.host(rank), operation);
  std::copy_n(from, to.size(), to.begin());
}

std::vector<std::string> FakeGpuHub::hazards() {
  const std::lock_guard guard(lock_);
  streams_.run_all();
  std::vector<std::string> hazards = streams_.graph().hazards();
  if (std::string stuck = groups_.find_stuck(); !stuck.empty()) hazards.push_back(std::move(stuck));
  return hazards;
}

void FakeGpuHub::report(std::string hazard) {
  const std::lock_guard guard(lock_);
  streams_.graph().report(std::move(hazard));
}

std::size_t FakeGpuHub::make_group(int size) {
  const std::lock_guard guard(lock_);
  return groups_.make(size);
}

void FakeGpuHub::join(std::size_t group, int member, int rank) {
  const std::lock_guard guard(lock_);
  groups_.join(group, member, rank);
  ++resources_[static_cast<std::size_t>(rank)].communicators;
}

void FakeGpuHub::leave(int rank) {
  const std::lock_guard guard(lock_);
  --resources_[static_cast<std::size_t>(rank)].communicators;
}

bool FakeGpuHub::is_complete(std::size_t group) {
  const std::lock_guard guard(lock_);
  return groups_.is_complete(group);
}

std::string FakeGpuHub::failure_of(std::size_t group, int member) {
  const std::lock_guard guard(lock_);
  return groups_.failure_of(group, member);
}

bool FakeGpuHub::has_pending(std::size_t group, int member) {
  const std::lock_guard guard(lock_);
  streams_.run_some();
  return groups_.has_pending(group, member);
}

void FakeGpuHub::drop(std::size_t group, int member) {
  const std::lock_guard guard(lock_);
  groups_.drop(group, member);
}

bool FakeGpuHub::check_memory(int rank, const MemoryOperation& operation) {
  const std::optional<int> owner = is_one_gpu_ ? std::nullopt : std::optional(rank);
  bool is_valid = true;
  for (const auto* ranges : {&operation.reads, &operation.writes}) {
    for (const ByteRange range : *ranges) {
      const std::string problem = memory_.problem_with(owner, range);
      if (problem.empty()) continue;
      is_valid = false;
      streams_.graph().report("not device memory: '" + operation.name + "' on rank " +
                              std::to_string(rank) + " uses " + problem);
    }
  }
  return is_valid;
}

}  // namespace kolo::test
