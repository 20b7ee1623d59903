#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <mutex>
#include <span>
#include <thread>

#include <cuda_runtime_api.h>

#include "comm/gpu/cuda.hpp"
#include "comm/gpu/cuda_gpus.hpp"
#include "gpu/device_copy.hpp"
#include "support/gpu/tensor_place.hpp"

namespace kolo::test {

/// A real GPU, opened when it is first used. Threads whose current device it is may share it.
class CudaTensorPlace final : public TensorPlace {
 public:
  explicit CudaTensorPlace(int index) : index_(index) {}

  Device device() const override { return {DeviceKind::Cuda, index_}; }
  std::shared_ptr<std::byte> allocate(std::size_t bytes) override {
    std::call_once(once_, [this] { gpu_ = comm::cuda_gpus()->open(index_); });
    return gpu_->allocate(bytes);
  }
  void upload(std::span<const std::byte> from, std::byte* to) override {
    copy_bytes(to, from.data(), from.size());
  }
  void download(const std::byte* from, std::span<std::byte> to) override {
    copy_bytes(to.data(), from, to.size());
  }
  /// Arrives late, so that whoever does not wait for it finds what was there before.
  void upload_on(comm::DeviceStream stream, std::span<const std::byte> from,
                 std::byte* to) override {
    if (from.empty()) return;
    void* copy = nullptr;
    KOLO_CUDA_TRY(cudaMallocAsync(&copy, from.size(), stream));
    KOLO_CUDA_TRY(cudaMemcpyAsync(copy, from.data(), from.size(), cudaMemcpyHostToDevice, stream));
    KOLO_CUDA_TRY(cudaLaunchHostFunc(
        stream, [](void*) { std::this_thread::sleep_for(std::chrono::microseconds(300)); },
        nullptr));
    KOLO_CUDA_TRY(cudaMemcpyAsync(to, copy, from.size(), cudaMemcpyDeviceToDevice, stream));
    KOLO_CUDA_TRY(cudaFreeAsync(copy, stream));
  }
  void download_on(comm::DeviceStream stream, const std::byte* from,
                   std::span<std::byte> to) override {
    KOLO_CUDA_TRY(cudaMemcpyAsync(to.data(), from, to.size(), cudaMemcpyDeviceToHost, stream));
    KOLO_CUDA_TRY(cudaStreamSynchronize(stream));
  }

 private:
  int index_;
  std::once_flag once_;
  std::shared_ptr<comm::Gpu> gpu_;
};

}  // namespace kolo::test
