#include "comm/gpu/cuda_gpus.hpp"

#include <cstdlib>
#include <string>

#include <gtest/gtest.h>

#include "comm/gpu/cuda_check.hpp"
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
  ::unsetenv("NCCL_HOSTID");
  let_ranks_share_gpus();
  const std::string first = std::getenv("NCCL_HOSTID");
  EXPECT_EQ(first.rfind("kolo-", 0), 0u) << first;
  let_ranks_share_gpus();
  EXPECT_EQ(std::getenv("NCCL_HOSTID"), first);  // a set variable is kept
  ::unsetenv("NCCL_HOSTID");
  let_ranks_share_gpus();
  EXPECT_NE(std::getenv("NCCL_HOSTID"), first);
  ::unsetenv("NCCL_HOSTID");
}

TEST(CudaGpusTest, NcclIsSetUpUnlessTheProgramHasDoneSo) {
  for (const char* name : {"NCCL_ALGO", "NCCL_LAUNCH_ORDER_IMPLICIT"}) ::unsetenv(name);
  set_up_nccl("auto");
  EXPECT_EQ(std::getenv("NCCL_ALGO"), nullptr);
  EXPECT_STREQ(std::getenv("NCCL_LAUNCH_ORDER_IMPLICIT"), "1");
  set_up_nccl("ring");
  EXPECT_STREQ(std::getenv("NCCL_ALGO"), "Ring");
  ::setenv("NCCL_ALGO", "Tree", 1);
  ::setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "0", 1);
  set_up_nccl("ring");
  EXPECT_STREQ(std::getenv("NCCL_ALGO"), "Tree");
  EXPECT_STREQ(std::getenv("NCCL_LAUNCH_ORDER_IMPLICIT"), "0");
  EXPECT_FALSE(cuda_gpus()->starts_collectives_in_order());
  for (const char* name : {"NCCL_ALGO", "NCCL_LAUNCH_ORDER_IMPLICIT"}) ::unsetenv(name);
}

/// The next error check in this process, by any code, would report it.
TEST(CudaGpusTest, ErrorsAreNotLeftToOthers) {
  if (const std::string why = test::why_no_gpu(); !why.empty()) GTEST_SKIP() << why;
  EXPECT_THROW(KOLO_CUDA_TRY(cudaSetDevice(-1)), BackendError);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

}  // namespace kolo::comm::cuda_gpus_test
