// Sharded optimizers: views of parameters, and what is refused.
#include <memory>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "kolo/error.hpp"
#include "support/mpi/variants.hpp"
#include "train/sharding.hpp"

namespace kolo::test::sharded_optimizer_test {

const AlsoIn also_in({"alone", "uneven", "messages", "nodes"});

TEST_F(ShardedOptimizerTest, ViewsAndCopiesOfAParameter_FollowIt) {
  for (const Shard mode : sharded_modes()) {
    torch::manual_seed(3);
    torch::nn::Linear model(6, 5);
    const torch::nn::Linear copied_model = model;  // shallow, like all of LibTorch's copies
    const at::Tensor copy = model->weight;
    const at::Tensor detached = model->weight.detach();
    const at::Tensor view = detached.t();
    const at::Tensor row = detached[3];
    const at::Tensor start = detached.clone();
    torch::optim::SGD inner(model->parameters(), 0.1);
    DistributedOptimizer optimizer(inner, *model, with(mode));
    for (int step = 0; step < 2; ++step) {
      optimizer.zero_grad();
      (model->forward(torch::ones({2, 6})).sum() * (runtime_.rank() + 1)).backward();
      optimizer.step();
    }
    // Every element has the gradient 2 (rank + 1), whose mean is n + 1.
    const at::Tensor expected = start - 2 * 0.1 * (runtime_.size() + 1);
    EXPECT_LT(largest_difference(model->weight.detach(), expected), 1e-6);
    EXPECT_TRUE(torch::equal(copied_model->weight, model->weight));
    EXPECT_TRUE(torch::equal(copy, model->weight));
    EXPECT_TRUE(torch::equal(detached, model->weight.detach()));
    EXPECT_TRUE(torch::equal(view, model->weight.detach().t()));
    EXPECT_TRUE(torch::equal(row, model->weight.detach()[3]));
  }
}

TEST_F(ShardedOptimizerTest, UnsupportedUses_AreRefusedOnAllRanks) {
  torch::nn::Sequential model = make_mlp(torch::kFloat32);
  torch::optim::SGD inner(model->parameters(), 0.1);
  expect_refused(
      [&] {
        DistributedOptimizer::Options options = with(Shard::Optimizer);
        options.op = ReduceOp::Adasum;
        const DistributedOptimizer optimizer(inner, *model, options);
      },
      "op Adasum needs whole gradients");
  expect_refused(
      [&] {
        DistributedOptimizer::Options options = with(Shard::Optimizer);
        options.accumulation = Accumulation::Reduced;
        const DistributedOptimizer optimizer(inner, *model, options);
      },
      "accumulation = Reduced requires shard = gradients");
  torch::nn::Linear transposed(4, 4);
  if (runtime_.rank() == 0) transposed->weight.set_data(transposed->weight.detach().t());
  torch::optim::SGD of_transposed(transposed->parameters(), 0.1);
  expect_refused(
      [&] {
        const DistributedOptimizer optimizer(of_transposed, *transposed, with(Shard::Optimizer));
      },
      "parameter 'weight': it is not contiguous in a storage of its own");
  torch::nn::Linear tied(4, 4);
  const at::Tensor alias = tied->weight.detach().view({16}).requires_grad_();
  torch::optim::SGD of_tied({tied->weight, alias}, 0.1);
  expect_refused(
      [&] { const DistributedOptimizer optimizer(of_tied, *tied, with(Shard::Optimizer)); },
      "shares its storage with parameter 'weight'");
  OwnOptimizer with_state(model->parameters());
  with_state.state()[model->parameters()[0].unsafeGetTensorImpl()] = std::make_unique<OwnState>();
  expect_refused(
      [&] { const DistributedOptimizer optimizer(with_state, *model, with(Shard::Optimizer)); },
      "has state that cannot be read or sharded");
  if (runtime_.size() > 1) {
    EXPECT_THROW(DistributedOptimizer(inner, *model,
                                      with(runtime_.rank() == 0 ? Shard::None : Shard::Optimizer)),
                 MismatchError);
  }
  DistributedOptimizer optimizer(inner, *model, with(Shard::Optimizer));
  expect_refused([&] { optimizer.register_bucket_hook({}); }, "register_bucket_hook()");
  torch::optim::SGD with_twins({model->parameters()[0], model->parameters()[0]}, 0.1);
  expect_refused(
      [&] { const DistributedOptimizer twice(with_twins, *model, with(Shard::Optimizer)); },
      "parameter 1 of the optimizer is in it twice");
  {
    const auto guard = optimizer.skip_synchronize();
    expect_refused([&] { optimizer.step(); }, "step() under skip_synchronize()");
  }
  expect_refused([&] { optimizer.clip_grad_norm_(1.0, 0.0); }, "norm_type 0");
}

}  // namespace kolo::test::sharded_optimizer_test
