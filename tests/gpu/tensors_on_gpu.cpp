// Linked into a test program for mpirun: places the tensors of each rank's main thread on the GPU
// with the rank's number. If there are fewer GPUs, ranks share them, which needs KOLO_SHARE_GPU=on.
#include <memory>
#include <string>

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include "comm/gpu/cuda.hpp"
#include "comm/gpu/cuda_gpus.hpp"
#include "gpu/cuda_tensor_place.hpp"
#include "gpu/skip_without_gpu.hpp"
#include "support/gpu/tensor_place.hpp"
#include "support/mpi/mpi_ranks.hpp"

namespace kolo::test {
namespace {

class OnGpu final : public testing::Environment {
 public:
  void SetUp() override {
    if (const std::string why = why_no_gpu(); !why.empty()) GTEST_SKIP() << why;
    const int index = MpiRanks::instance().rank() % comm::cuda_gpus()->count();
    KOLO_CUDA_TRY(cudaSetDevice(index));
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
