#include "comm/gpu/cuda_gpus.hpp"

#include <array>
#include <cstdint>
#include <cstdlib>
#include <string>

#include <gtest/gtest.h>

#include "comm/gpu/cuda.hpp"
#include "comm/self_world.hpp"
#include "gpu/skip_without_gpu.hpp"
#include "kolo/error.hpp"

namespace kolo::comm::cuda_gpus_test {

TEST(CudaGpusTest, WorldsHaveThem) {
  SelfWorld world;
  EXPECT_NE(cuda_gpus(), nullptr);
  EXPECT_EQ(world.gpus(), cuda_gpus());
}

TEST(CudaGpusTest, WithoutAGpuTheErrorSaysWhy) {
  if (test::why_no_gpu().empty()) GTEST_SKIP() << "there is a GPU here";
  for (const auto& call : {+[] { cuda_gpus()->count(); }, +[] { cuda_gpus()->open(0); }}) {
    try {
      call();
      ADD_FAILURE() << "no error";
    } catch (const BackendError& error) {
      const std::string text = error.what();
      EXPECT_EQ(text.find("this process sees no GPU: cudaGetDeviceCount failed with cudaError"), 0u)
          << text;
      EXPECT_NE(text.find("nvidia-smi"), std::string::npos) << text;
    }
  }
}

TEST(CudaGpusTest, OpensEachOnce) {
  if (const std::string why = test::why_no_gpu(); !why.empty()) GTEST_SKIP() << why;
  const std::shared_ptr<Gpu> gpu = cuda_gpus()->open(0);
  EXPECT_EQ(gpu->index(), 0);
  EXPECT_EQ(cuda_gpus()->open(0), gpu);
  EXPECT_THROW(cuda_gpus()->open(-1), BackendError);
  EXPECT_THROW(cuda_gpus()->open(cuda_gpus()->count()), BackendError);
}

TEST(CudaGpusTest, ProcessesThatShareGetAHostOfTheirOwn) {
  const std::array<std::uint64_t, 3> shared{5, 7, 5};
  ::unsetenv("NCCL_HOSTID");
  let_ranks_share_gpus(shared);
  const std::string first = std::getenv("NCCL_HOSTID");
  EXPECT_EQ(first.rfind("kolo-", 0), 0u) << first;
  let_ranks_share_gpus(shared);
  EXPECT_EQ(std::getenv("NCCL_HOSTID"), first);  // a set variable is kept
  ::unsetenv("NCCL_HOSTID");
  let_ranks_share_gpus(shared);
  EXPECT_NE(std::getenv("NCCL_HOSTID"), first);
  ::unsetenv("NCCL_HOSTID");
}

/// To NCCL they would be on different hosts, without NVLink.
TEST(CudaGpusTest, ProcessesWithAGpuEachStayOnOneHost) {
  ::unsetenv("NCCL_HOSTID");
  let_ranks_share_gpus(std::array<std::uint64_t, 3>{5, 7, 6});
  EXPECT_EQ(std::getenv("NCCL_HOSTID"), nullptr);
}

TEST(CudaGpusTest, LocalRanksTakeGpusInTurn) {
  if (const std::string why = test::why_no_gpu(); !why.empty()) {
    EXPECT_EQ(usual_gpu(0), 0u);
    return;
  }
  const int gpus = cuda_gpus()->count();
  EXPECT_EQ(usual_gpu(gpus - 1), cuda_gpus()->open(gpus - 1)->id());
  EXPECT_EQ(usual_gpu(gpus), cuda_gpus()->open(0)->id());
}

TEST(CudaGpusTest, NcclIsSetUpUnlessTheProgramHasDoneSo) {
  ::unsetenv("NCCL_ALGO");
  set_up_nccl("auto");
  EXPECT_EQ(std::getenv("NCCL_ALGO"), nullptr);
  set_up_nccl("ring");
  EXPECT_STREQ(std::getenv("NCCL_ALGO"), "Ring");
  ::setenv("NCCL_ALGO", "Tree", 1);
  set_up_nccl("ring");
  EXPECT_STREQ(std::getenv("NCCL_ALGO"), "Tree");
  ::unsetenv("NCCL_ALGO");
}

/// The next error check in this process, by any code, would report it.
TEST(CudaGpusTest, ErrorsAreNotLeftToOthers) {
  if (const std::string why = test::why_no_gpu(); !why.empty()) GTEST_SKIP() << why;
  EXPECT_THROW(KOLO_CUDA_TRY(cudaSetDevice(-1)), BackendError);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

}  // namespace kolo::comm::cuda_gpus_test
