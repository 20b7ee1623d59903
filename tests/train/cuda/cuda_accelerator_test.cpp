// An Accelerator on ranks with one GPU each.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "kolo/extras/accelerator.hpp"
#include "train/cuda/fake_cuda_fixture.hpp"

namespace kolo::test::cuda_accelerator_test {

/// Sample i is {i}, and so is its target; both are on the CPU.
struct Numbers : torch::data::datasets::Dataset<Numbers> {
  torch::data::Example<> get(std::size_t index) override {
    const at::Tensor number = torch::full({1}, static_cast<double>(index));
    return {number, number};
  }
  std::optional<std::size_t> size() const override { return 12; }
};

TEST(CudaAcceleratorTest, Rank_ComputesOnItsOwnGpu) {
  run_cuda_ranks(3, [](CudaRank& rank) {
    const c10::impl::VirtualGuardImpl cuda(c10::kCUDA);
    cuda.setDevice({c10::kCUDA, 0});
    Accelerator accelerator({.optimizer = {.process_set = &rank.world()}});
    EXPECT_EQ(accelerator.device(), rank.device());
    EXPECT_EQ(cuda.getDevice(), rank.device());
  });
}

TEST(CudaAcceleratorTest, Batches_AreOnTheDeviceOfTheModel) {
  run_cuda_ranks(2, [](CudaRank& rank) {
    Accelerator accelerator({.optimizer = {.process_set = &rank.world()}});
    torch::nn::Linear model(1, 1);
    model->to(accelerator.device());
    torch::optim::SGD sgd(model->parameters(), torch::optim::SGDOptions(0.1));
    auto data = Numbers().map(torch::data::transforms::Stack<>());
    auto batches = accelerator.prepare(*model, sgd, data, {.batch_size = 4});
    auto held_out = accelerator.batches(data, {.batch_size = 4});
    for (auto& batch : batches) {
      EXPECT_EQ(batch.data.device(), rank.device());
      EXPECT_EQ(batch.target.device(), rank.device());
      accelerator.backward(torch::mse_loss(model->forward(batch.data), batch.target));
      EXPECT_TRUE(accelerator.step());
    }
    for (auto& batch : held_out) EXPECT_EQ(batch.data.device(), rank.device());
  });
}

}  // namespace kolo::test::cuda_accelerator_test
