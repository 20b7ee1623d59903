#include <memory>
#include <string>
#include <vector>

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include "comm/gpu/cuda.hpp"
#include "comm/gpu/cuda_gpus.hpp"
#include "gpu/cuda_tensor_place.hpp"
#include "gpu/skip_without_gpu.hpp"
#include "gpu/thread_worlds.hpp"
#include "kolo/algorithm.hpp"
#include "support/gpu/thread_gpus.hpp"

namespace kolo::test {
namespace {

constexpr int kGpu = 0;

/// Copies the inputs to the host, combines them there, and copies the result back.
void combine_on_host(DType dtype, ReduceOp op, const std::vector<const std::byte*>& inputs,
                     std::byte* to, std::size_t count, comm::DeviceStream stream) {
  const comm::CudaDeviceGuard guard(kGpu);
  const std::size_t bytes = count * size_of(dtype);
  std::vector<std::vector<std::byte>> copies(inputs.size(), std::vector<std::byte>(bytes));
  std::vector<const std::byte*> contributions;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    std::byte* const copy = copies[i].data();
    KOLO_CUDA_TRY(cudaMemcpyAsync(copy, inputs[i], bytes, cudaMemcpyDeviceToHost, stream));
    contributions.push_back(copy);
  }
  KOLO_CUDA_TRY(cudaStreamSynchronize(stream));
  std::byte* const outputs[] = {copies[0].data()};  // may be an input's memory
  combine(dtype, {.op = op}, contributions, outputs, count);
  KOLO_CUDA_TRY(cudaMemcpyAsync(to, outputs[0], bytes, cudaMemcpyHostToDevice, stream));
  KOLO_CUDA_TRY(cudaStreamSynchronize(stream));
}

/// Not owned: lives as long as the process.
std::shared_ptr<comm::Gpus> real_gpus() { return {std::shared_ptr<void>(), comm::cuda_gpus()}; }

class NeedsGpu final : public testing::Environment {
 public:
  void SetUp() override {
    if (const std::string why = why_no_gpu(); !why.empty()) GTEST_SKIP() << why;
  }
};

[[maybe_unused]] const testing::Environment* const needs_gpu =
    testing::AddGlobalTestEnvironment(new NeedsGpu);

}  // namespace

Setting on_one_gpu(Setting setting) {
  setting.config.share_gpu = true;
  setting.network.gpus_per_rank = 0;  // no fake ones
  setting.place = std::make_shared<CudaTensorPlace>(kGpu);
  setting.network.make_gpus = [groups = std::make_shared<ThreadGroups>()](FakeWorld&) {
    return std::make_unique<ThreadGpus>(real_gpus(), groups, combine_on_host);
  };
  return setting;
}

}  // namespace kolo::test
