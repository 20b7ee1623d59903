// Situations that tests set up on fake GPUs, and queries about them.
#include <chrono>
#include <string>
#include <thread>
#include <utility>

#include "base/deadline.hpp"
#include "support/gpu/fake_gpu_hub.hpp"

namespace kolo::test {

void FakeGpuHub::begin_capture(int rank, comm::DeviceStream stream) {
  const std::lock_guard guard(lock_);
  captured_.emplace(rank, stream);
}

void FakeGpuHub::end_capture(int rank, comm::DeviceStream stream) {
  const std::lock_guard guard(lock_);
  captured_.erase({rank, stream});
}

bool FakeGpuHub::is_capturing(int rank, comm::DeviceStream stream) {
  const std::lock_guard guard(lock_);
  streams_.require_no_failure(rank, "is_capturing");
  return captured_.contains({rank, stream});
}

void FakeGpuHub::check_not_captured(int rank, comm::DeviceStream stream, const char* operation) {
  if (!captured_.contains({rank, stream})) return;
  streams_.graph().report(std::string("capture: '") + operation + "' on rank " +
                          std::to_string(rank) + " reaches into a graph or out of it");
}

FakeGpuHub::Resources FakeGpuHub::resources(int rank) {
  const std::lock_guard lock(lock_);
  return resources_[static_cast<std::size_t>(rank)];
}

int FakeGpuHub::allocations(int rank) {
  const std::lock_guard lock(lock_);
  return allocations_[static_cast<std::size_t>(rank)];
}

void FakeGpuHub::block_queries(int rank) {
  const std::lock_guard guard(lock_);
  blocked_[static_cast<std::size_t>(rank)] = Blocked::Queries;
}

void FakeGpuHub::block_aborts(int rank) {
  const std::lock_guard guard(lock_);
  blocked_[static_cast<std::size_t>(rank)] = Blocked::Aborts;
}

void FakeGpuHub::unblock(int rank) {
  const std::lock_guard guard(lock_);
  blocked_[static_cast<std::size_t>(rank)] = Blocked::Nothing;
}

bool FakeGpuHub::is_blocked(int rank) {
  const std::lock_guard guard(lock_);
  return blocked_[static_cast<std::size_t>(rank)] != Blocked::Nothing;
}

void FakeGpuHub::wait_while_blocked(int rank, Blocked what) {
  const Deadline deadline = Deadline::after(std::chrono::seconds(30));
  while (true) {
    {
      const std::lock_guard guard(lock_);
      Blocked& blocked = blocked_[static_cast<std::size_t>(rank)];
      if (blocked != what) return;
      if (deadline.has_passed()) blocked = Blocked::Nothing;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void FakeGpuHub::fail_collective(int rank, std::size_t nth, std::string reason) {
  const std::lock_guard guard(lock_);
  groups_.inject_failure(rank, nth, std::move(reason));
}

void FakeGpuHub::lose_collective(int rank, std::size_t nth) {
  const std::lock_guard guard(lock_);
  groups_.inject_failure(rank, nth, {});
}

}  // namespace kolo::test
