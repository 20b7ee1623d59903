// Groups of collectives, and memory registered with communicators.
#include <string>
#include <utility>

#include "support/gpu/fake_gpu_hub.hpp"

namespace kolo::test {

int FakeGpuHub::launches(int rank) {
  const std::lock_guard lock(lock_);
  return launches_[static_cast<std::size_t>(rank)];
}

void FakeGpuHub::launch(std::size_t group, int member, int rank, FakeLaunch launch) {
  const std::lock_guard guard(lock_);
  ++launches_[static_cast<std::size_t>(rank)];
  const std::string conflict = find_conflict(launch.calls, member);
  if (!conflict.empty()) streams_.graph().report(conflict);
  for (FakeCall& call : launch.calls) {
    bool is_valid = check_memory(rank, accesses_of(call, member));
    std::string hazard = find_invalid_overlap(call, member);
    if (!groups_.is_complete(group)) hazard = "not ready: '" + describe(call) + "' was called";
    if (!hazard.empty()) {
      streams_.graph().report(hazard + " (rank " + std::to_string(rank) + ")");
      is_valid = false;
    }
    const auto [input, output] = memory_of(call, member);
    call.has_registered_input = registrations_.covers(group, member, input);
    call.has_registered_output = registrations_.covers(group, member, output);
    groups_.put(group, member, std::move(call), launch.stream, is_valid);
  }
}

void FakeGpuHub::collect(int rank, comm::DeviceStream stream) {
  const std::lock_guard lock(lock_);
  collecting_.emplace(rank, stream);
}

void FakeGpuHub::end_collecting(int rank, comm::DeviceStream stream) {
  const std::lock_guard lock(lock_);
  collecting_.erase({rank, stream});
}

void FakeGpuHub::check_not_collecting(int rank, comm::DeviceStream stream,
                                      const std::string& operation) {
  if (!collecting_.contains({rank, stream})) return;
  streams_.graph().report("group: '" + operation + "' on rank " + std::to_string(rank) +
                          " comes before the operations of a group that was begun earlier");
}

FakeRegistrations::Count FakeGpuHub::registrations(int rank) {
  const std::lock_guard lock(lock_);
  return registrations_.count(rank);
}

void* FakeGpuHub::register_memory(std::size_t group, int member, int rank, ByteRange memory) {
  const std::lock_guard lock(lock_);
  check_memory(rank, {.name = "register", .reads = {memory}});
  return registrations_.add({group, member, rank, memory});
}

void FakeGpuHub::deregister(std::size_t group, int member, void* registration) {
  const std::lock_guard lock(lock_);
  streams_.run_some();
  const ByteRange memory = registrations_.remove(group, member, registration);
  if (memory.empty()) streams_.graph().report("registered: memory that is not was deregistered");
  if (groups_.is_in_use(group, member, memory)) {
    streams_.graph().report("registered: memory was deregistered that an operation uses");
  }
}

void FakeGpuHub::check_deregistered(std::size_t group, int member) {
  const std::lock_guard lock(lock_);
  if (!registrations_.has_some(group, member)) return;
  streams_.graph().report("registered: a communicator ended whose memory still is");
}

void FakeGpuHub::check_not_registered(const std::byte* memory) {
  if (!registrations_.is_known(memory_.block_at(memory))) return;
  streams_.graph().report("registered: memory was freed that still is");
}

}  // namespace kolo::test
