// State and gradients that each rank of a sharded optimizer keeps.
#include <cstdint>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "kolo/error.hpp"
#include "support/mpi/variants.hpp"
#include "train/sharding.hpp"

namespace kolo::test::sharded_memory_test {

const AlsoIn also_in({"uneven", "messages", "nodes"});

constexpr std::int64_t kWidth = 9;

TEST_F(ShardedOptimizerTest, Destruction_LeavesNoStateBehind) {
  for (const Shard mode : sharded_modes()) {
    torch::nn::Sequential model = make_mlp(torch::kFloat32);
    torch::optim::Adam inner(model->parameters(), 1e-3);
    for (int wrapping = 0; wrapping < 3; ++wrapping) {
      DistributedOptimizer optimizer(inner, *model, with(mode));
      loss_of(model, batch_rows(0, 0, 4, kWidth, torch::kFloat32)).backward();
      optimizer.step();
      for (const auto& [key, state] : inner.state()) {
        const auto& adam = static_cast<const torch::optim::AdamParamState&>(*state);
        const bool is_guard = adam.exp_avg().numel() == 0;
        EXPECT_EQ(adam.step(), is_guard ? 0 : 1);
      }
    }
    EXPECT_TRUE(inner.state().empty());
  }
}

TEST_F(ShardedOptimizerTest, ReducedGradients_CannotBeAccessed) {
  for (const Shard mode : sharded_modes()) {
    torch::nn::Sequential model = make_mlp(torch::kFloat32);
    torch::optim::SGD inner(model->parameters(), 0.1);
    DistributedOptimizer optimizer(inner, *model, with(mode));
    for (int step = 0; step < 2; ++step) {
      loss_of(model, batch_rows(step, 0, 4, kWidth, torch::kFloat32)).backward();
      optimizer.synchronize();
      for (const at::Tensor& parameter : model->parameters()) {
        EXPECT_THROW(static_cast<void>(parameter.grad().const_data_ptr()), c10::Error);
      }
      EXPECT_THROW(torch::nn::utils::clip_grad_norm_(model->parameters(), 1.0), c10::Error);
      EXPECT_GT(optimizer.clip_grad_norm_(1.0), 0.0);
      // A second backward() is an error: its gradients would be lost.
      const at::Tensor loss = loss_of(model, batch_rows(step, 0, 4, kWidth, torch::kFloat32));
      EXPECT_THROW(loss.backward(), InvalidArgument);
      optimizer.step();
      optimizer.zero_grad();
    }
  }
}

}  // namespace kolo::test::sharded_memory_test
