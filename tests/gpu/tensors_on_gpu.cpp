// Linked into a test program for mpirun: places the tensors of each rank's main thread on the GPU
// with the rank's number. If there are fewer GPUs, ranks share them, which needs KOLO_SHARE_GPU=on.
#include <memory>
#include <span>
#include <string>

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include "comm/gpu/cuda_check.hpp"
#include "comm/gpu/cuda_gpus.hpp"
#include "gpu/device_copy.hpp"
#include "gpu/skip_without_gpu.hpp"
#include "support/gpu/tensor_place.hpp"
#include "support/mpi/mpi_ranks.hpp"

namespace kolo::test {
namespace {

class CudaTensorPlace final : public TensorPlace {
 public:
  explicit CudaTensorPlace(int index) : gpu_(comm::cuda_gpus()->open(index)) {
    KOLO_CUDA_TRY(cudaSetDevice(index));
  }

  Device device() const override { return {DeviceKind::Cuda, gpu_->index()}; }
  std::shared_ptr<std::byte> allocate(std::size_t bytes) override { return gpu_->allocate(bytes); }
  void upload(std::span<const std::byte> from, std::byte* to) override {
    copy_bytes(to, from.data(), from.size());
  }
  void download(const std::byte* from, std::span<std::byte> to) override {
    copy_bytes(to.data(), from, to.size());
  }

 private:
  std::shared_ptr<comm::Gpu> gpu_;
};

class OnGpu final : public testing::Environment {
 public:
  void SetUp() override {
    if (const std::string why = why_no_gpu(); !why.empty()) GTEST_SKIP() << why;
    const int index = MpiRanks::instance().rank() % comm::cuda_gpus()->count();
    place_ = std::make_unique<CudaTensorPlace>(index);
    tensor_place = place_.get();
  }
  void TearDown() override { tensor_place = nullptr; }

 private:
  std::unique_ptr<CudaTensorPlace> place_;
};

[[maybe_unused]] const testing::Environment* const on_gpu =
    testing::AddGlobalTestEnvironment(new OnGpu);

}  // namespace
}  // namespace kolo::test
