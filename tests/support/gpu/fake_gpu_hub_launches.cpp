// Groups of collectives.
#include <string>
#include <utility>

#include "support/gpu/fake_gpu_hub.hpp"

namespace kolo::test {

FakeGpuHub::Calls FakeGpuHub::calls(int rank) {
  const std::lock_guard lock(lock_);
  return calls_[static_cast<std::size_t>(rank)];
}

void FakeGpuHub::count(int rank, int Calls::* what) {
  const std::lock_guard lock(lock_);
  ++(calls_[static_cast<std::size_t>(rank)].*what);
}

void FakeGpuHub::launch(std::size_t group, int member, int rank, FakeLaunch launch) {
  const std::lock_guard guard(lock_);
  Calls& calls = calls_[static_cast<std::size_t>(rank)];
  ++calls.launches;
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
    const bool is_first = &call == &launch.calls.front();
    groups_.put(group, member, std::move(call), {launch.stream, is_valid, is_first});
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

}  // namespace kolo::test
