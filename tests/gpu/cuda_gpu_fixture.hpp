#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "comm/gpu/cuda.hpp"
#include "comm/gpu/cuda_gpus.hpp"
#include "gpu/conversion_cases.hpp"
#include "gpu/device_copy.hpp"
#include "gpu/skip_without_gpu.hpp"

namespace kolo::comm::cuda_gpu_test {

class CudaGpuTest : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = test::why_no_gpu(); !why.empty()) GTEST_SKIP() << why;
    gpu_ = cuda_gpus()->open(0);
    stream_ = gpu_->make_stream();
  }

  void synchronize() const { KOLO_CUDA_TRY(cudaStreamSynchronize(stream_.get())); }

  std::shared_ptr<std::byte> upload(std::span<const std::byte> bytes) const {
    auto memory = gpu_->allocate(bytes.size() + 1);
    test::copy_bytes(memory.get(), bytes.data(), bytes.size());
    return memory;
  }

  /// Copies data to the GPU, converts it there, and copies it back.
  test::HostConvert on_gpu() const {
    return [this](std::span<const DeviceRun> runs, std::span<const std::byte> from,
                  std::span<std::byte> to, DeviceConversion conversion) {
      const bool in_place = from.data() == to.data();
      const auto target = upload(to);
      const auto source = in_place ? target : upload(from);
      std::vector<DeviceRun> moved;
      for (const DeviceRun& run : runs) {
        moved.push_back({source.get() + (run.from - from.data()),
                         target.get() + (run.to - to.data()), run.count});
      }
      gpu_->convert(moved, conversion, stream_.get());
      moved.clear();
      synchronize();
      test::copy_bytes(to.data(), target.get(), to.size());
    };
  }

  std::shared_ptr<Gpu> gpu_;
  std::shared_ptr<CUstream_st> stream_;
};

}  // namespace kolo::comm::cuda_gpu_test
