// Uses of the wrapped optimizer or of parameters that bypass the DistributedOptimizer are detected;
// legitimate uses are not refused.
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "kolo/error.hpp"
#include "kolo/torch/parameter_sync.hpp"
#include "support/mpi/variants.hpp"
#include "train/sharding.hpp"
#include "train/sharding/sharded_guards_fixture.hpp"

namespace kolo::test::sharded_guards_test {

const AlsoIn also_in({"messages"});

TEST_F(ShardedGuardsTest, ParametersWrittenInsteadOfSteps_AreDetected) {
  torch::nn::Sequential model = make_mlp(torch::kFloat32);
  torch::optim::SGD inner(model->parameters(), 0.1);
  DistributedOptimizer optimizer(inner, *model, with(Shard::None));
  const auto misuse = [&] {
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      backward(model, step);
      const at::NoGradGuard no_grad;
      for (at::Tensor& parameter : model->parameters()) parameter.mul_(0.9);
    }
  };
  expect_contains(text_thrown_by<InvalidArgument>(misuse),
                  "gradients were discarded twice without a step() between");
}

/// One of the two models of a GAN, trained with Kolo in `mode`, or without.
struct Player {
  Player(std::int64_t width, std::optional<Shard> mode)
      : model(make_mlp(torch::kFloat64, width, 2)),
        inner(make_optimizer(Algorithm::RmsProp, model->parameters())) {
    if (mode) optimizer = std::make_unique<DistributedOptimizer>(*inner, *model, with(*mode));
  }
  void zero_grad() { optimizer ? optimizer->zero_grad() : inner->zero_grad(); }
  void step() { optimizer ? optimizer->step() : inner->step(); }
  void clamp() {
    const auto change = [&] {
      const at::NoGradGuard no_grad;
      for (at::Tensor& weight : model->parameters()) weight.clamp_(-0.2, 0.2);
    };
    optimizer ? optimizer->full_parameters(change) : change();
  }

  torch::nn::Sequential model;
  std::unique_ptr<Optimizer> inner;
  std::unique_ptr<DistributedOptimizer> optimizer;
};

/// A Wasserstein GAN. Weights are clamped while the critic holds gradients from the generator's
/// pass.
at::Tensor train_wgan(Runtime& runtime, std::optional<Shard> mode) {
  Player generator(4, mode);
  Player critic(3, mode);
  const std::int64_t rows = mode ? 12 / runtime.size() : 12;
  const std::int64_t first = mode ? runtime.rank() * rows : 0;
  const auto batch = [&](int step, std::int64_t width) {
    return batch_rows(step, first, rows, width, torch::kFloat64);
  };
  for (int step = 0; step < 6; ++step) {
    for (int round = 0; round < 2; ++round) {
      critic.clamp();
      critic.zero_grad();
      const at::Tensor fake = generator.model->forward(batch(step + 50, 4)).detach();
      const at::Tensor real = batch(step + round, 3);
      (critic.model->forward(fake).mean() - critic.model->forward(real).mean()).backward();
      critic.step();
    }
    generator.zero_grad();
    (-critic.model->forward(generator.model->forward(batch(step + 100, 4))).mean()).backward();
    generator.step();
  }
  return torch::cat({flat(*generator.model), flat(*critic.model)});
}

TEST_F(ShardedGuardsTest, Gan_MayClampItsWeights) {
  const at::Tensor alone = train_wgan(runtime_, std::nullopt);
  for (const Shard mode : all_modes()) {
    EXPECT_LT(largest_difference(train_wgan(runtime_, mode), alone), 1e-9);
  }
}

TEST_F(ShardedGuardsTest, StepsOfOneRankUnderNoSync_AreThoseOfThatRankAlone) {
  torch::nn::Sequential model = make_mlp(torch::kFloat32);
  torch::nn::Sequential alone = make_mlp(torch::kFloat32);
  torch::optim::SGD inner(model->parameters(), 0.1);
  torch::optim::SGD plain(alone->parameters(), 0.1);
  DistributedOptimizer optimizer(inner, *model, with(Shard::None));
  for (int step = 0; step < 4; ++step) {
    const auto guard = optimizer.no_sync();
    inner.zero_grad();
    backward(model, step);
    inner.step();
    plain.zero_grad();
    backward(alone, step);
    plain.step();
  }
  EXPECT_TRUE(torch::equal(flat(*model), flat(*alone)));
  optimizer.zero_grad();
  backward(model, 4);
  optimizer.step();
  plain.zero_grad();
  backward(alone, 4);
  for (at::Tensor& parameter : alone->parameters()) allreduce_(parameter.mutable_grad());
  plain.step();
  EXPECT_LT(largest_difference(flat(*model), flat(*alone)), 1e-6);
}

std::vector<OptimizerCase> known_optimizers() {
  using namespace torch::optim;
  return {{"SGD", maker<SGD>(SGDOptions(0.1).momentum(0.9))},
          {"Adam", maker<Adam>(AdamOptions(1e-3))},
          {"AdamW", maker<AdamW>(AdamWOptions(1e-3))},
          {"RMSprop", maker<RMSprop>(RMSpropOptions(1e-3))},
          {"Adagrad", maker<Adagrad>(AdagradOptions(1e-3))}};
}

/// The number of elements of a state tensor that the optimizer keeps for every parameter.
std::int64_t elements_of(const std::string& kind, const torch::optim::OptimizerParamState& state) {
  using namespace torch::optim;
  if (kind == "SGD") return static_cast<const SGDParamState&>(state).momentum_buffer().numel();
  if (kind == "Adam") return static_cast<const AdamParamState&>(state).exp_avg().numel();
  if (kind == "AdamW") return static_cast<const AdamWParamState&>(state).exp_avg_sq().numel();
  if (kind == "RMSprop") return static_cast<const RMSpropParamState&>(state).square_avg().numel();
  return static_cast<const AdagradParamState&>(state).sum().numel();
}

std::int64_t elements_in(const std::string& kind, Optimizer& optimizer) {
  std::int64_t count = 0;
  for (const auto& [key, state] : optimizer.state()) count += elements_of(kind, *state);
  return count;
}

/// A mode, the place of an optimizer in known_optimizers(), how the program zeroes gradients, and
/// how many valid steps it takes before. Each in a Runtime of its own: ranks that fail at different
/// parameters leave operations behind.
class WrappedStepTest : public ShardedGuardsTest,
                        public testing::WithParamInterface<std::tuple<Shard, int, int, int>> {};
INSTANTIATE_TEST_SUITE_P(, WrappedStepTest,
                         testing::Combine(testing::ValuesIn(all_modes()), testing::Values(0, 1),
                                          testing::Range(0, 4), testing::Values(0, 2)));

TEST_P(WrappedStepTest, StepOfTheWrappedOptimizer_IsDetected) {
  const auto [mode, kind, zeroing, steps_before] = GetParam();
  torch::nn::Sequential model = make_mlp(torch::kFloat32);
  const auto inner = known_optimizers()[static_cast<std::size_t>(kind)].make(model->parameters());
  DistributedOptimizer optimizer(*inner, *model, with(mode));
  train(model, optimizer, steps_before);
  optimizer.zero_grad();
  const std::string text = text_thrown_by<c10::Error>([&, zeroing = zeroing] {
    for (int step = 0; step < 4; ++step) {
      if (zeroing == 0) optimizer.zero_grad();
      if (zeroing == 1) inner->zero_grad();
      if (zeroing == 2) model->zero_grad();
      backward(model, step);
      inner->step();
    }
  });
  // Where parameters are gathered, the gradients of late buckets are still this rank's own: ranks
  // fail at different parameters, or since another rank has.
  if (mode == Shard::Full && gathers_on_use()) return;
  expect_contains(text, "gradient of parameter '0.weight' is being reduced");
}

TEST_F(ShardedGuardsTest, TorchSaveOfTheWrappedOptimizer_IsRefused) {
  for (const auto& [kind, make] : known_optimizers()) {
    for (const Shard mode : sharded_modes()) {
      torch::nn::Sequential model = make_mlp(torch::kFloat32);
      const auto inner = make(model->parameters());
      const std::int64_t count = flat(*model).numel();
      std::ostringstream stream;
      {
        DistributedOptimizer optimizer(*inner, *model, with(mode));
        if (mode != Shard::Full) torch::save(*inner, stream);  // not sharded yet
        backward(model, 0);
        optimizer.step();
        expect_refused([&, &of = *inner] { torch::save(of, stream); },
                       "would write this rank's shards of the state");
        expect_refused([&, &of = *inner] { broadcast_optimizer_state(of, size() - 1); },
                       "Call save(folder)");
        const at::Tensor own = torch::full({1}, elements_in(kind, *inner), torch::kLong);
        EXPECT_EQ(allreduce(own, {.op = ReduceOp::Sum}).item<std::int64_t>(), count) << kind;
      }
      // Adagrad's step() expects state.
      EXPECT_EQ(elements_in(kind, *inner), kind == std::string("Adagrad") ? count : 0) << kind;
      torch::save(*inner, stream);
    }
  }
}

TEST_F(ShardedGuardsTest, TorchLoadIntoTheWrappedOptimizer_IsDetected) {
  for (const Shard mode : sharded_modes()) {
    torch::nn::Sequential model = make_mlp(torch::kFloat32);
    const auto inner = make_optimizer(Algorithm::Adam, model->parameters());
    backward(model, 0);
    inner->step();
    std::stringstream saved;
    torch::save(*inner, saved);
    DistributedOptimizer optimizer(*inner, *model, with(mode));
    if (mode != Shard::Full) torch::load(*inner, saved);  // not sharded yet
    optimizer.zero_grad();
    backward(model, 1);
    optimizer.step();
    saved.seekg(0);
    torch::load(*inner, saved);
    expect_refused(
        [&] {
          optimizer.zero_grad();
          backward(model, 2);
        },
        "has state of the whole parameter");
  }
}

TEST_F(ShardedGuardsTest, ParametersOfAnotherType_AreDetected) {
  for (const Shard mode : all_modes()) {
    for (const int steps : {0, 2}) {
      torch::nn::Sequential model = make_mlp(torch::kFloat32);
      torch::optim::SGD inner(model->parameters(), 0.1);
      DistributedOptimizer optimizer(inner, *model, with(mode));
      train(model, optimizer, steps);
      model->to(torch::kFloat64);
      loss_of(model, batch_rows(0, 0, 2, kWidth, torch::kFloat64)).backward();
      expect_refused([&] { optimizer.step(); },
                     "parameter '0.weight' has another dtype, device or shape");
      expect_refused([&] { optimizer.synchronize(); }, "parameter '0.weight'");
    }
  }
}

TEST_F(ShardedGuardsTest, ParametersThatWereMoved_AreDetected) {
  std::stringstream saved;
  torch::save(make_mlp(torch::kFloat32), saved);
  const std::vector<std::pair<std::string, std::function<void(torch::nn::Sequential&)>>> moves{
      {"parameter '4.weight' have been moved",
       [](torch::nn::Sequential& model) {
         at::Tensor weight = model->parameters()[4];
         weight.set_data(weight.detach().clone());
       }},
      {"' have been moved", [&saved](torch::nn::Sequential& model) {
         saved.seekg(0);
         torch::load(model, saved);
       }}};
  for (const Shard mode : all_modes()) {
    for (const auto& [text, move] : moves) {
      torch::nn::Sequential model = make_mlp(torch::kFloat32);
      torch::optim::SGD inner(model->parameters(), 0.1);
      DistributedOptimizer optimizer(inner, *model, with(mode));
      backward(model, 0);
      optimizer.step();
      optimizer.full_parameters([&] {
        const at::NoGradGuard no_grad;  // copying is allowed
        for (at::Tensor& parameter : model->parameters()) parameter.copy_(parameter * 0.5);
      });
      optimizer.zero_grad();
      backward(model, 1);
      move(model);
      const at::Tensor before = flat(*model);
      if (mode == Shard::None) {  // step() finds moved parameters
        optimizer.step();
        EXPECT_FALSE(torch::equal(flat(*model), before));
        continue;
      }
      expect_refused([&] { optimizer.step(); }, text);
      EXPECT_TRUE(torch::equal(flat(*model), before));
    }
  }
}

}  // namespace kolo::test::sharded_guards_test
