// Ranks as threads, each with tensors on its own cuda:<rank>, on machines without GPU and
// libtorch_cuda:
//   run_cuda_ranks(3, [](CudaRank& rank) {
//     const at::Tensor x = at::ones({4}, rank.options());
//     ... kolo operations with `.process_set = &rank.world()` and `.stream = rank.stream()` ...
//     EXPECT_EQ(rank.host_syncs(), 0);
//   });
//
// Kernels run immediately, on the CPU, after the collectives on their stream. In the happens-before
// graph they are as asynchronous as on CUDA: any access that streams, events and host waits do not
// order is reported at the end. Each rank needs its own device, since backward() has one thread per
// device.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/TensorOptions.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>

#include "base/deadline.hpp"
#include "kolo/error.hpp"
#include "runtime/runtimes.hpp"
#include "support/gpu/fake_cuda/device.hpp"

namespace kolo::test {

class CudaRank {
 public:
  CudaRank(Runtime& runtime, std::shared_ptr<FakeCudaDevice> gpu)
      : runtime_(runtime), gpu_(std::move(gpu)) {}

  Runtime& runtime() const { return runtime_; }
  /// Must be named in all operations: LibTorch's threads and hooks have no current Runtime.
  ProcessSet& world() const { return runtime_.world(); }
  int rank() const { return runtime_.rank(); }
  int size() const { return runtime_.size(); }

  at::Device device() const { return gpu_->device(); }
  at::TensorOptions options(at::ScalarType type = at::kFloat) const {
    return at::TensorOptions().device(device()).dtype(type);
  }
  /// The thread's current stream.
  CUstream_st* stream() const { return native_stream(current_cuda_stream(device())); }
  /// How often this rank's host has waited for its GPU in LibTorch: item(), copies to and from the
  /// CPU, synchronize(). Kolo itself should add none.
  int host_syncs() const { return gpu_->host_syncs(); }
  /// What Kolo has called on this rank's GPU.
  FakeGpuHub::Calls calls() const { return gpu_->hub().calls(rank()); }
  /// Waits until Kolo has released the memory of all ranks' batches so far.
  void await_released_batches() const {
    const Deadline deadline = Deadline::after(std::chrono::seconds(30));
    while (gpu_->hub().live_marks() > 0) {
      if (deadline.has_passed()) throw TimeoutError("a batch is never released");
      std::this_thread::yield();
    }
  }

 private:
  Runtime& runtime_;
  std::shared_ptr<FakeCudaDevice> gpu_;
};

inline c10::Stream new_stream(const CudaRank& rank) {
  return c10::impl::VirtualGuardImpl(c10::kCUDA).getNewStream(rank.device());
}

inline Setting cuda_setting(int size) {
  return {.name = "Cuda", .size = size, .network = {.gpus_per_rank = 1, .late_launches = true}};
}

/// Runs `body` on each rank and returns hazards. The thread's current device is one that no rank
/// has: Kolo must not rely on it. Kolo, not the test, must keep a rank's tensors alive while other
/// ranks need them.
inline std::vector<std::string> hazards_of_cuda_ranks(const Setting& setting,
                                                      const std::function<void(CudaRank&)>& body) {
  std::shared_ptr<FakeGpuHub> hub;
  run_ranks(
      setting.size,
      [&](FakeWorld& world) {
        const int rank = world.topology().rank;
        if (rank == 0) hub = world.hub();
        const auto gpu = std::make_shared<FakeCudaDevice>(world.hub(), rank);
        const FakeCudaAttachment attachment(gpu);
        const c10::DeviceGuard guard(c10::Device(c10::kCUDA, kFakeCudaDevices - 1));
        Runtime runtime(options_in(world, setting.config));
        Runtime::set_thread_current(&runtime);
        CudaRank cuda_rank(runtime, gpu);
        body(cuda_rank);
      },
      setting.network);
  return hub->hazards();
}

inline void run_cuda_ranks(const Setting& setting, const std::function<void(CudaRank&)>& body) {
  for (const std::string& hazard : hazards_of_cuda_ranks(setting, body)) ADD_FAILURE() << hazard;
}
inline void run_cuda_ranks(int size, const std::function<void(CudaRank&)>& body) {
  run_cuda_ranks(cuda_setting(size), body);
}

}  // namespace kolo::test
