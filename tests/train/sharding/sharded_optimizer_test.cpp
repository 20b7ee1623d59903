// Sharded optimizers beyond ordinary models: clipped gradients, parameters of all kinds, views of
// parameters, parameters that are added later, and errors.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "kolo/error.hpp"
#include "support/mpi/variants.hpp"
#include "train/sharding.hpp"
#include "train/zoo.hpp"

namespace kolo::test::sharded_optimizer_test {

const AlsoIn also_in({"alone", "uneven", "messages", "nodes"});

constexpr std::int64_t kWidth = 9;

constexpr double kMaxNorm = 0.01;  // below all norms in these tests

struct Clipped {
  std::vector<double> norms;  ///< before clipping, of each step
  at::Tensor parameters;
};

Clipped clip_alone(int ranks, double p) {
  torch::nn::Sequential model = make_mlp(torch::kFloat64);
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  Clipped result;
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    for (int rank = 0; rank < ranks; ++rank) {
      const at::Tensor rows = batch_rows(step, rank, 2, kWidth, torch::kFloat64);
      (loss_of(model, rows) / ranks).backward();
    }
    result.norms.push_back(torch::nn::utils::clip_grad_norm_(model->parameters(), kMaxNorm, p));
    optimizer.step();
  }
  result.parameters = flat(*model);
  return result;
}

Clipped clip(Runtime& runtime, double p, Shard shard, ShardScope scope) {
  DistributedOptimizer::Options options = with(shard);
  options.shard_scope = scope;
  torch::nn::Sequential model = make_mlp(torch::kFloat64);
  torch::optim::SGD inner(model->parameters(), 0.1);
  DistributedOptimizer optimizer(inner, *model, options);
  Clipped result;
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    loss_of(model, batch_rows(step, runtime.rank(), 2, kWidth, torch::kFloat64)).backward();
    result.norms.push_back(optimizer.clip_grad_norm_(kMaxNorm, p));
    optimizer.step();
  }
  result.parameters = flat(*model);
  return result;
}

TEST_F(ShardedOptimizerTest, Clip_ReturnsTheNormBefore) {
  for (const double p : {1.0, 2.0, 3.0, std::numeric_limits<double>::infinity()}) {
    const Clipped alone = clip_alone(runtime_.size(), p);
    for (const auto& [shard, scope] : {std::pair{Shard::None, ShardScope::World},
                                       {Shard::Optimizer, ShardScope::World},
                                       {Shard::Gradients, ShardScope::World},
                                       {Shard::Full, ShardScope::World},
                                       {Shard::Optimizer, ShardScope::Node}}) {
      const Clipped clipped = clip(runtime_, p, shard, scope);
      for (std::size_t step = 0; step < alone.norms.size(); ++step) {
        EXPECT_GT(alone.norms[step], 2 * kMaxNorm) << p;
        EXPECT_NEAR(clipped.norms[step], alone.norms[step], 1e-12) << p;
      }
      EXPECT_LT(largest_difference(clipped.parameters, alone.parameters), 1e-12) << p;
    }
  }
}

std::unique_ptr<Optimizer> make_zoo_optimizer(Zoo& zoo) {
  using namespace torch::optim;
  std::vector<OptimizerParamGroup> groups;
  groups.emplace_back(Parameters{zoo.tied, zoo.frozen, zoo.tiny, zoo.never},
                      std::make_unique<AdamWOptions>(AdamWOptions(1e-2).weight_decay(0.1)));
  groups.emplace_back(Parameters{zoo.empty, zoo.wide, zoo.sometimes, zoo.on_one_rank},
                      std::make_unique<AdamWOptions>(AdamWOptions(3e-3).weight_decay(0.5)));
  return std::make_unique<AdamW>(std::move(groups), AdamWOptions(1.0));
}

std::vector<at::Tensor> train_zoo(Runtime& runtime, Shard shard) {
  Zoo zoo;
  const auto inner = make_zoo_optimizer(zoo);
  DistributedOptimizer optimizer(*inner, zoo, with(shard));
  for (int step = 0; step < 20; ++step) {
    optimizer.zero_grad();
    const at::Tensor rows = batch_rows(step, 3 * runtime.rank(), 3, 7, torch::kFloat32);
    zoo.forward(rows, step, runtime.rank()).backward();
    optimizer.step();
    if (step == 9) inner->param_groups()[1].options().set_lr(1e-3);
  }
  std::vector<at::Tensor> parameters;
  for (const at::Tensor& parameter : zoo.parameters()) {
    parameters.push_back(parameter.detach().clone());
  }
  return parameters;
}

TEST_F(ShardedOptimizerTest, ParametersOfAllKinds_Train) {
  const std::vector<at::Tensor> whole = train_zoo(runtime_, Shard::None);
  const Zoo untouched;
  const auto names = untouched.named_parameters();
  for (const Shard mode : sharded_modes()) {
    // Skipped: some ranks use parameters that others do not.
    if (mode == Shard::Full && gathers_on_use()) continue;
    const std::vector<at::Tensor> sharded = train_zoo(runtime_, mode);
    for (std::size_t i = 0; i < whole.size(); ++i) {
      if (whole[i].numel() == 0) continue;
      expect_alike(sharded[i], whole[i], names[i].key().c_str());
    }
    EXPECT_TRUE(torch::equal(sharded[7], untouched.never));  // weight decay must not change it
  }
}

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

TEST_F(ShardedOptimizerTest, LaterParameters_AreShardedToo) {
  const auto run = [&](Shard shard) {
    torch::nn::Sequential model = make_mlp(torch::kFloat32);
    torch::nn::Sequential head = make_mlp(torch::kFloat32, 3, 1);
    torch::optim::Adam inner(model->parameters(), torch::optim::AdamOptions(1e-2).eps(1e-4));
    DistributedOptimizer optimizer(inner, *model, with(shard));
    for (int step = 0; step < 8; ++step) {
      if (step == 4) {
        optimizer.add_param_group(torch::optim::OptimizerParamGroup(head->parameters()));
      }
      optimizer.zero_grad();
      const at::Tensor rows = batch_rows(step, runtime_.rank() * 3, 3, kWidth, torch::kFloat32);
      at::Tensor out = model->forward(rows);
      if (step >= 4) out = head->forward(out);
      out.pow(2).sum().backward();
      optimizer.step();
    }
    return torch::cat({flat(*model), flat(*head)});
  };
  const at::Tensor whole = run(Shard::None);
  for (const Shard mode : sharded_modes()) expect_alike(run(mode), whole);
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
