#include "support/gpu/fake_device_communicator.hpp"

#include <chrono>
#include <thread>
#include <utility>
#include <vector>

#include "base/deadline.hpp"
#include "kolo/error.hpp"

namespace kolo::test {
namespace {

using Kind = FakeCall::Kind;

const std::byte* bytes(const void* memory) { return static_cast<const std::byte*>(memory); }
std::byte* bytes(void* memory) { return static_cast<std::byte*>(memory); }

std::vector<std::size_t> copy(std::span<const std::size_t> counts) {
  return {counts.begin(), counts.end()};
}

}  // namespace

FakeDeviceCommunicator::FakeDeviceCommunicator(std::shared_ptr<FakeGpuHub> hub, std::size_t group,
                                               int member, int size, int rank)
    : hub_(std::move(hub)), group_(group), member_(member), size_(size), rank_(rank) {
  hub_->join(group_, member_, rank_);
}

FakeDeviceCommunicator::~FakeDeviceCommunicator() {
  hub_->leave(rank_);
  if (reason_) hub_->drop(group_, member_);
  if (reason_) return;
  const Deadline deadline = Deadline::after(std::chrono::seconds(10));
  while (hub_->has_pending(group_, member_)) {
    if (deadline.has_passed()) {
      hub_->drop(group_, member_);
      return;
    }
    std::this_thread::yield();
  }
}

bool FakeDeviceCommunicator::ready() {
  require_alive();
  if (open_group_) hub_->report("group: 'ready' was asked inside of one");
  const std::string failure = hub_->failure_of(group_, member_);
  if (!failure.empty() && !reason_) {
    reason_ = failure;
    if (failure.starts_with("remote error")) throw comm::RemoteError(failure);
  }
  require_alive();
  if (!hub_->is_complete(group_)) return false;
  if (!in_flight_) return true;
  if (!std::exchange(was_polled_, true)) return false;
  hub_->launch(group_, member_, rank_, std::move(*in_flight_));
  in_flight_.reset();
  return true;
}

void FakeDeviceCommunicator::all_reduce(const void* input, void* output, std::size_t count,
                                        DType dtype, ReduceOp op, comm::DeviceStream stream) {
  launch({.kind = Kind::AllReduce,
          .input = bytes(input),
          .output = bytes(output),
          .counts = {count},
          .dtype = dtype,
          .op = op},
         stream);
}

void FakeDeviceCommunicator::reduce_scatter(const void* input, void* output,
                                            std::span<const std::size_t> counts, DType dtype,
                                            ReduceOp op, comm::DeviceStream stream) {
  launch({.kind = Kind::ReduceScatter,
          .input = bytes(input),
          .output = bytes(output),
          .counts = copy(counts),
          .dtype = dtype,
          .op = op},
         stream);
}

void FakeDeviceCommunicator::all_gather(const void* input, void* output,
                                        std::span<const std::size_t> counts, DType dtype,
                                        comm::DeviceStream stream) {
  launch({.kind = Kind::AllGather,
          .input = bytes(input),
          .output = bytes(output),
          .counts = copy(counts),
          .dtype = dtype},
         stream);
}

void FakeDeviceCommunicator::broadcast(void* buffer, std::size_t count, DType dtype, int root,
                                       comm::DeviceStream stream) {
  launch({.kind = Kind::Broadcast,
          .input = bytes(buffer),
          .output = bytes(buffer),
          .counts = {count},
          .dtype = dtype,
          .root = root},
         stream);
}

void FakeDeviceCommunicator::all_to_all(const void* input, std::span<const std::size_t> sent,
                                        void* output, std::span<const std::size_t> received,
                                        DType dtype, comm::DeviceStream stream) {
  launch({.kind = Kind::AllToAll,
          .input = bytes(input),
          .output = bytes(output),
          .counts = copy(sent),
          .received = copy(received),
          .dtype = dtype},
         stream);
}

void FakeDeviceCommunicator::abort(const std::string& reason) noexcept {
  if (std::exchange(is_aborted_, true)) return;
  if (!reason_) reason_ = reason;
  hub_->await_abort(rank_);
  hub_->drop(group_, member_);
}

void FakeDeviceCommunicator::require_alive() const {
  if (reason_) throw BackendError("fake GPU communicator has failed: " + *reason_);
}

void FakeDeviceCommunicator::launch(FakeCall call, comm::DeviceStream stream) {
  require_alive();
  check_call(call, size_);
  if (!open_group_) return launch_all({{std::move(call)}, stream});
  if (open_group_->calls.empty()) hub_->collect(rank_, stream);
  open_group_->stream = stream;
  open_group_->calls.push_back(std::move(call));
}

void FakeDeviceCommunicator::launch_all(FakeLaunch group) {
  if (in_flight_) hub_->report("not ready: '" + describe(group.calls.front()) + "' was called");
  if (hub_->late_launches()) {
    in_flight_ = std::move(group);
    was_polled_ = false;
  } else {
    hub_->launch(group_, member_, rank_, std::move(group));
  }
}

void FakeDeviceCommunicator::begin_group() {
  require_alive();
  if (open_group_) hub_->report("group: begun inside of one");
  open_group_.emplace();
}

void FakeDeviceCommunicator::end_group() {
  FakeLaunch group = *std::exchange(open_group_, std::nullopt);
  if (group.calls.empty()) return;
  hub_->end_collecting(rank_, group.stream);
  require_alive();
  launch_all(std::move(group));
}

}  // namespace kolo::test
