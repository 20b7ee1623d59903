#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "comm/gpu/device_communicator.hpp"
#include "support/gpu/fake_gpu_hub.hpp"

namespace kolo::test {

/// Collectives among fake GPUs, summed in rank order. Supports and rejects the same calls as NCCL.
class FakeDeviceCommunicator final : public comm::DeviceCommunicator {
 public:
  /// Joins a group of the hub as `member`; `ready` is true once all members have joined.
  FakeDeviceCommunicator(std::shared_ptr<FakeGpuHub> hub, std::size_t group, int member, int size,
                         int rank);
  FakeDeviceCommunicator(const FakeDeviceCommunicator&) = delete;  // exactly one per rank
  FakeDeviceCommunicator& operator=(const FakeDeviceCommunicator&) = delete;
  /// Like NCCL, waits up to a second for operations in flight, then drops them.
  ~FakeDeviceCommunicator() override;

  int rank() const override { return member_; }
  int size() const override { return size_; }
  bool ready() override;

  void all_reduce(const void* input, void* output, std::size_t count, DType dtype, ReduceOp op,
                  comm::DeviceStream stream) override;
  void reduce_scatter(const void* input, void* output, std::span<const std::size_t> counts,
                      DType dtype, ReduceOp op, comm::DeviceStream stream) override;
  void all_gather(const void* input, void* output, std::span<const std::size_t> counts, DType dtype,
                  comm::DeviceStream stream) override;
  void broadcast(void* buffer, std::size_t count, DType dtype, int root,
                 comm::DeviceStream stream) override;
  void all_to_all(const void* input, std::span<const std::size_t> sent, void* output,
                  std::span<const std::size_t> received, DType dtype,
                  comm::DeviceStream stream) override;

  void begin_group() override;
  void end_group() override;

  void abort(const std::string& reason) noexcept override;

 private:
  void require_alive() const;
  void launch(FakeCall call, comm::DeviceStream stream);
  void launch_all(FakeLaunch group);

  std::shared_ptr<FakeGpuHub> hub_;
  std::size_t group_;
  int member_;
  int size_;
  int rank_;                           // world rank
  std::optional<std::string> reason_;  // of the failure or abort
  bool is_aborted_ = false;
  std::optional<FakeLaunch> open_group_;
  std::optional<FakeLaunch> in_flight_;  // launched, but not on its stream yet
  bool was_polled_ = false;              // `ready` has been called since the launch
};

}  // namespace kolo::test
