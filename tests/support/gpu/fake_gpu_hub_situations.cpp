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
  return captured_.contains({rank, stream});
}

void FakeGpuHub::check_not_captured(int rank, comm::DeviceStream stream, const char* operation) {
  if (!captured_.contains({rank, stream})) return;
  streams_.graph().report(std::string("capture: '") + operation + "' on rank " +
                          std::to_string(rank) + " reaches into a graph or out of it");
}

FakeGpuHub::Holding FakeGpuHub::holding(int rank) {
  const std::lock_guard lock(lock_);
  return holdings_[static_cast<std::size_t>(rank)];
}

int FakeGpuHub::allocations(int rank) {
  const std::lock_guard lock(lock_);
  return allocations_[static_cast<std::size_t>(rank)];
}

bool FakeGpuHub::answer(int rank, comm::DeviceEvent event) {
  wait_until_let_go(rank, Held::Questions);
  return has_passed(rank, event);
}

void FakeGpuHub::hold_questions(int rank) {
  const std::lock_guard guard(lock_);
  held_[static_cast<std::size_t>(rank)] = Held::Questions;
}

void FakeGpuHub::hold_aborts(int rank) {
  const std::lock_guard guard(lock_);
  held_[static_cast<std::size_t>(rank)] = Held::Aborts;
}

void FakeGpuHub::let_go(int rank) {
  const std::lock_guard guard(lock_);
  held_[static_cast<std::size_t>(rank)] = Held::Nothing;
}

bool FakeGpuHub::is_held(int rank) {
  const std::lock_guard guard(lock_);
  return held_[static_cast<std::size_t>(rank)] != Held::Nothing;
}

void FakeGpuHub::wait_until_let_go(int rank, Held what) {
  const Deadline deadline = Deadline::after(std::chrono::seconds(30));
  while (true) {
    {
      const std::lock_guard guard(lock_);
      Held& held = held_[static_cast<std::size_t>(rank)];
      if (held != what) return;
      if (deadline.has_passed()) held = Held::Nothing;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void FakeGpuHub::fail_collective(int rank, std::size_t nth, std::string reason) {
  const std::lock_guard guard(lock_);
  groups_.disturb(rank, nth, std::move(reason));
}

void FakeGpuHub::refuse_registrations(int rank) {
  const std::lock_guard guard(lock_);
  registrations_.refuse(rank);
}

void FakeGpuHub::refuse_registration(const std::byte* memory) {
  const std::lock_guard guard(lock_);
  registrations_.refuse(memory);
}

void FakeGpuHub::lose_collective(int rank, std::size_t nth) {
  const std::lock_guard guard(lock_);
  groups_.disturb(rank, nth, {});
}

}  // namespace kolo::test
