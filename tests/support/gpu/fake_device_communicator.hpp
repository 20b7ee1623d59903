#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "comm/gpu/device_communicator.hpp"
#include "support/gpu/fake_gpu_hub.hpp"

namespace kolo::test {

/// Collectives among fake GPUs, summed in rank order. Supports and refuses what NCCL does.
class FakeDeviceCommunicator final : public comm::DeviceCommunicator {
 public:
  /// Joins a group of the hub's as `member`; `ready` says when all have.
  FakeDeviceCommunicator(std::shared_ptr<FakeGpuHub> hub, std::size_t group, int member, int size,
                         int rank);
  FakeDeviceCommunicator(const FakeDeviceCommunicator&) = delete;  // one rank has one
  FakeDeviceCommunicator& operator=(const FakeDeviceCommunicator&) = delete;
  /// Like NCCL, waits a second for operations in flight, then drops them.
  ~FakeDeviceCommunicator() override;

  int rank() const override { return member_; }
  int size() const override { return size_; }
  bool ready() override;

  void all_reduce(const void* input, void* output, std::size_t count, DType dtype,
                  comm::DeviceReduction reduction, comm::DeviceStream stream) override;
  void reduce_scatter(const void* input, void* output, std::span<const std::size_t> counts,
                      DType dtype, comm::DeviceReduction reduction,
                      comm::DeviceStream stream) override;
  void all_gather(const void* input, void* output, std::span<const std::size_t> counts, DType dtype,
                  comm::DeviceStream stream) override;
  void broadcast(void* buffer, std::size_t count, DType dtype, int root,
                 comm::DeviceStream stream) override;
  void all_to_all(const void* input, std::span<const std::size_t> sent, void* output,
                  std::span<const std::size_t> received, DType dtype,
                  comm::DeviceStream stream) override;

  void begin_group() override;
  void end_group() override;
  void* register_memory(std::byte* memory, std::size_t bytes) override;
  void deregister(void* registration) noexcept override;

  void abort(const std::string& reason) noexcept override;

 private:
  void require_alive() const;
  void launch(FakeCall call, comm::DeviceStream stream);
  void launch_all(FakeLaunch group);

  std::shared_ptr<FakeGpuHub> hub_;
  std::size_t group_;
  int member_;
  int size_;
  int rank_;                           // in the world
  std::optional<std::string> reason_;  // why it has failed or was aborted
  bool is_aborted_ = false;
  std::optional<FakeLaunch> open_group_;
  std::optional<FakeLaunch> on_its_way_;  // called, but not on its stream yet
  bool was_looked_for_ = false;           // what is on its way
};

}  // namespace kolo::test
