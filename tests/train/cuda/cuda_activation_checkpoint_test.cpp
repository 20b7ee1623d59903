// Activation checkpoints on GPUs, where backward() runs on a thread of the device.
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "kolo/torch/activation_checkpoint.hpp"
#include "train/cuda/cuda_training.hpp"

namespace kolo::test::cuda_activation_checkpoint_test {

using Tensors = std::vector<at::Tensor>;

/// The loss, the gradients, and the next numbers of the device's random generator.
Tensors run_blocks(const CudaRank& rank, bool is_checkpointed) {
  at::Generator generator = at::globalContext().defaultGenerator(rank.device());
  generator.set_current_seed(7);
  const auto leaf = [&] { return at::randn({4, 4}, rank.options()).requires_grad_(); };
  const Tensors weights{leaf(), leaf()};
  const at::Tensor input = leaf();
  const at::Tensor captured = weights[1] * 2;
  const auto call = [&](const auto& function, const at::Tensor& x) {
    return is_checkpointed ? checkpoint(function, x) : function(x);
  };
  std::vector<std::thread::id> threads;
  const auto inner = [&](const at::Tensor& x) -> at::Tensor {
    threads.push_back(std::this_thread::get_id());
    return at::tanh(x.matmul(weights[0]) * at::randn({4, 4}, rank.options()));
  };
  const auto outer = [&](const at::Tensor& x) -> at::Tensor { return call(inner, x) * captured; };
  const at::Tensor loss = call(outer, input).sum();
  Tensors results{loss.detach().cpu(), at::randn({3}, rank.options()).cpu()};
  loss.backward();
  for (const at::Tensor& tensor : {input, weights[0], weights[1]}) {
    results.push_back(tensor.grad().cpu());
  }
  results.push_back(at::randn({3}, rank.options()).cpu());
  EXPECT_EQ(threads.size(), is_checkpointed ? 3U : 1U);  // recomputed for outer and for inner
  EXPECT_EQ(threads.back() != threads.front(), is_checkpointed);
  return results;
}

TEST(CudaActivationCheckpointTest, Recomputation_DrawsFromTheDevicesGenerator) {
  run_cuda_ranks(1, [](CudaRank& rank) {
    const Tensors plain = run_blocks(rank, false);
    const Tensors checkpointed = run_blocks(rank, true);
    for (std::size_t i = 0; i < plain.size(); ++i) {
      EXPECT_TRUE(at::equal(checkpointed[i], plain[i])) << i;
    }
  });
}

TEST(CudaActivationCheckpointTest, Training_IsAsWithout) {
  for (const Shard shard : {Shard::None, Shard::Optimizer, Shard::Gradients}) {
    at::Tensor trained[2];
    run_cuda_ranks(2, [&](CudaRank& rank) {
      CudaTraining training(rank, Algorithm::Adam, options_of(rank, shard));
      for (int step = 0; step < kSteps; ++step) {
        training.optimizer->zero_grad();
        const at::Tensor rows = rows_of(rank, step);
        const at::Tensor output = checkpoint(training.model, rows);
        at::mse_loss(output, rows.narrow(1, 0, 3)).backward();
        training.optimizer->step();
      }
      trained[rank.rank()] = flat(*training.model).cpu();
    });
    EXPECT_TRUE(at::equal(trained[0], trained[1]));
    EXPECT_LT(largest_difference(trained[0], train_alone(Algorithm::Adam, 2, kSteps)), 1e-5);
  }
}

}  // namespace kolo::test::cuda_activation_checkpoint_test
