#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <functional>
#include <initializer_list>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/deadline.hpp"
#include "comm/gpu/device_communicator.hpp"
#include "comm/wait.hpp"
#include "support/fake_world/fake_world.hpp"
#include "support/gpu/fake_gpu_hub.hpp"

namespace kolo::test {

/// One rank of a test of fake GPUs.
struct GpuRank {
  int rank;
  int size;
  FakeWorld& world;
  FakeGpuHub& hub;
  comm::Gpu& gpu;
  comm::DeviceCommunicator& communicator;  // of all ranks
};

/// Another communicator of some ranks, including this one.
inline std::unique_ptr<comm::DeviceCommunicator> connect(FakeWorld& world, comm::Gpu& gpu,
                                                         const std::vector<int>& ranks,
                                                         int channel) {
  const auto messages = world.make_communicator(ranks, channel);
  std::unique_ptr<comm::DeviceCommunicator> made;
  comm::wait(world.gpus()->connect(*messages, 3, gpu, made),
             Deadline::after(std::chrono::minutes(1)));
  return made;
}

inline std::vector<int> all_ranks(int size) {
  std::vector<int> ranks(static_cast<std::size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

/// Runs `body` on every rank, each with a GPU, and returns the hazards of all.
inline std::vector<std::string> run_on_gpus(int size,
                                            const std::function<void(const GpuRank&)>& body,
                                            const FakeOptions& options = {.gpus_per_rank = 1}) {
  std::shared_ptr<FakeGpuHub> hub;
  run_ranks(
      size,
      [&](FakeWorld& world) {
        const int rank = world.topology().rank;
        if (rank == 0) hub = world.hub();
        const auto gpu = world.gpus()->open(rank);
        const auto communicator = connect(world, *gpu, all_ranks(size), 0);
        body({rank, size, world, *world.hub(), *gpu, *communicator});
      },
      options);
  return hub->hazards();
}

/// The same on 2, 3 and 4 ranks; expects no hazard.
inline void expect_no_hazards(const std::function<void(const GpuRank&)>& body) {
  for (const int size : {2, 3, 4}) {
    SCOPED_TRACE(std::to_string(size) + " ranks");
    EXPECT_EQ(run_on_gpus(size, body), std::vector<std::string>());
  }
}

/// Elements in a rank's device memory.
template <class T>
class DeviceArray {
 public:
  DeviceArray(const GpuRank& rank, std::size_t count)
      : hub_(rank.hub), rank_(rank.rank), count_(count), memory_(hub_.allocate(rank_, bytes())) {}

  DeviceArray(const GpuRank& rank, const std::vector<T>& values)
      : DeviceArray(rank, values.size()) {
    hub_.copy_to_device(rank_, std::as_bytes(std::span(values)), memory_.get());
  }

  DeviceArray(const GpuRank& rank, std::initializer_list<T> values)
      : DeviceArray(rank, std::vector<T>(values)) {}

  std::byte* data() const { return memory_.get(); }
  T* elements() const { return reinterpret_cast<T*>(memory_.get()); }
  std::size_t count() const { return count_; }
  ByteRange range() const { return {memory_.get(), bytes()}; }
  void free() { memory_.reset(); }

  /// The values that the host sees now, without waiting for anything.
  std::vector<T> get() const {
    std::vector<T> values(count_);
    hub_.copy_to_host(rank_, memory_.get(), std::as_writable_bytes(std::span(values)));
    return values;
  }

 private:
  std::size_t bytes() const { return count_ * sizeof(T); }

  FakeGpuHub& hub_;
  int rank_;
  std::size_t count_;
  std::shared_ptr<std::byte> memory_;
};

/// The hazards of a call on rank 0 and another on rank 1.
template <class Call>
std::vector<std::string> hazards_of(const Call& call) {
  return run_on_gpus(2, [&](const GpuRank& self) {
    DeviceArray<float> input(self, std::vector<float>(8, 1.0F));
    DeviceArray<float> output(self, 8);
    call(self, input.data(), output.data());
    self.hub.synchronize(self.rank, nullptr);
  });
}

/// Whether a hazard's text contains both parts.
inline bool has_hazard(const std::vector<std::string>& hazards, const std::string& part,
                       const std::string& other = {}) {
  return std::any_of(hazards.begin(), hazards.end(), [&](const std::string& hazard) {
    return hazard.find(part) != std::string::npos && hazard.find(other) != std::string::npos;
  });
}

}  // namespace kolo::test
