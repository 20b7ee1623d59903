// Checkpoints, parameters and state on CUDA tensors, on the fake GPU.
#include <cstdint>
#include <filesystem>
#include <string>
#include <unistd.h>
#include <vector>

#include <ATen/Context.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "kolo/torch/parameter_sync.hpp"
#include "kolo/torch/tensor_collectives.hpp"
#include "train/cuda/cuda_training.hpp"

namespace kolo::test::cuda_checkpoint_test {

class CudaCheckpointTest : public testing::TestWithParam<Shard> {};
INSTANTIATE_TEST_SUITE_P(Modes, CudaCheckpointTest, every_mode(), name_of_mode);

TEST_P(CudaCheckpointTest, Checkpoints_ResumeInAnyMode) {
  const at::Tensor expected = train_alone(Algorithm::AdamW, 2, 2 * kSteps);
  const std::filesystem::path folder =
      std::filesystem::path(testing::TempDir()) /
      ("cuda-checkpoint-" + std::string(name_of(GetParam())) + std::to_string(::getpid()));
  run_cuda_ranks(2, [&](CudaRank& rank) {
    CudaTraining training(rank, Algorithm::AdamW, options_of(rank, GetParam()));
    for (int step = 0; step < kSteps; ++step) training.step(rank, step);
    training.optimizer->save(folder);
    training.optimizer->save_full_state(folder / "all.safetensors");
  });
  for (const Shard shard : {Shard::None, Shard::Optimizer, Shard::Gradients, Shard::Full}) {
    run_cuda_ranks(2, [&](CudaRank& rank) {
      CudaTraining training(rank, Algorithm::AdamW, options_of(rank, shard));
      training.optimizer->load(folder);
      for (int step = kSteps; step < 2 * kSteps; ++step) training.step(rank, step);
      expect_close(training, expected);
    });
  }
  const at::Tensor halfway = train_alone(Algorithm::AdamW, 2, kSteps);
  run_cuda_ranks(2, [&](CudaRank& rank) {
    CudaTraining training(rank, Algorithm::AdamW, options_of(rank, GetParam()));
    training.optimizer->load(folder / "all.safetensors");
    expect_close(training, halfway);
  });
  std::filesystem::remove_all(folder);
}

TEST(CudaRandomTest, Checkpoint_HoldsTheGeneratorOfEachRanksDevice) {
  const auto folder =
      std::filesystem::path(testing::TempDir()) / ("cuda-random-" + std::to_string(::getpid()));
  run_cuda_ranks(2, [&](CudaRank& rank) {
    CudaTraining training(rank, Algorithm::Sgd, options_of(rank, Shard::None));
    at::Generator generator = at::globalContext().defaultGenerator(rank.device());
    generator.set_current_seed(static_cast<std::uint64_t>(rank.rank()) + 5);
    training.optimizer->save(folder);
    const at::Tensor expected = torch::rand({5}, rank.options()).cpu();
    training.optimizer->load(folder);
    EXPECT_TRUE(at::equal(torch::rand({5}, rank.options()).cpu(), expected));
    training.optimizer->load(folder, {.random_state = false});
    EXPECT_FALSE(at::equal(torch::rand({5}, rank.options()).cpu(), expected));
  });
  std::filesystem::remove_all(folder);
}

TEST(CudaSyncTest, ParametersAndState_AreTheRoots) {
  run_cuda_ranks(3, [&](CudaRank& rank) {
    torch::nn::Sequential model = make_model();
    model->to(rank.device());
    const auto adamw = make_optimizer(Algorithm::AdamW, model->parameters());
    {
      const at::NoGradGuard no_grad;
      for (at::Tensor& parameter : model->parameters()) parameter.add_(rank.rank());
    }
    loss_of(model, rows_of(rank, 0)).backward();
    adamw->step();
    const auto values = [&] {
      std::vector<at::Tensor> all{flat(*model)};
      for (const at::Tensor& parameter : model->parameters()) {
        const auto& state = dynamic_cast<const torch::optim::AdamWParamState&>(
            *adamw->state().at(parameter.unsafeGetTensorImpl()));
        EXPECT_EQ(state.exp_avg().device(), rank.device());
        all.push_back(state.exp_avg().flatten());
        all.push_back(state.exp_avg_sq().flatten());
      }
      return torch::cat(all);
    };
    const at::Tensor before = values();
    const at::Tensor roots = broadcast(before, 1, {.process_set = &rank.world()});
    EXPECT_EQ(at::equal(before.cpu(), roots.cpu()), rank.rank() == 1);
    broadcast_parameters(*model, 1, &rank.world());
    broadcast_optimizer_state(*adamw, 1, &rank.world());
    EXPECT_TRUE(at::equal(values().cpu(), roots.cpu()));
  });
}

}  // namespace kolo::test::cuda_checkpoint_test
