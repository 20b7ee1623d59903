// Sharded training has the same results as ordinary training with every optimizer, bit for bit
// where sums are in rank order.
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "support/mpi/variants.hpp"
#include "train/sharding.hpp"

namespace kolo::test::sharded_training_test {

const AlsoIn also_in({"alone", "uneven", "messages", "nodes"});

constexpr int kSteps = 16;
constexpr std::int64_t kBatch = 24;  // divisible by 1, 2, 3 and 4
constexpr std::int64_t kWidth = 9;

/// How ranks are connected changes nothing of an update: a variant has one optimizer with a tensor
/// of state, one with three, and one with state from the start.
std::vector<OptimizerCase> cases() {
  using namespace torch::optim;
  std::vector<OptimizerCase> all{
      {"sgd", maker<SGD>(SGDOptions(0.05))},
      {"sgd_momentum",
       maker<SGD>(SGDOptions(0.05).momentum(0.9).weight_decay(0.01).dampening(0.1))},
      {"sgd_nesterov", maker<SGD>(SGDOptions(0.05).momentum(0.9).nesterov(true))},
      {"adam", maker<Adam>(AdamOptions(1e-2).eps(1e-4).weight_decay(0.01))},
      {"adam_amsgrad", maker<Adam>(AdamOptions(1e-2).eps(1e-4).amsgrad(true))},
      {"adamw", maker<AdamW>(AdamWOptions(1e-2).eps(1e-4))},
      {"adamw_amsgrad", maker<AdamW>(AdamWOptions(1e-2).eps(1e-4).amsgrad(true))},
      {"rmsprop", maker<RMSprop>(RMSpropOptions(1e-3).eps(1e-4))},
      {"rmsprop_centered",
       maker<RMSprop>(RMSpropOptions(1e-3).momentum(0.9).eps(1e-4).centered(true))},
      {"adagrad", maker<Adagrad>(AdagradOptions(1e-2).lr_decay(0.01).weight_decay(0.01))},
      {"adagrad_initial", maker<Adagrad>(AdagradOptions(1e-2).initial_accumulator_value(0.3))},
  };
  if (!variant().empty()) {
    std::erase_if(all, [](const OptimizerCase& which) {
      const std::string_view name = which.name;
      return name != "sgd_momentum" && name != "adamw_amsgrad" && name != "adagrad_initial";
    });
  }
  return all;
}

/// Deviations from a plain loop.
struct Variation {
  int steps_before_wrapping = 0;
  bool widens_state = false;  ///< momentum in float64 from wrapping on
};

at::Tensor train(Runtime& runtime, const OptimizerCase& which,
                 DistributedOptimizer::Options options, const Variation& variation = {}) {
  torch::nn::Sequential model = make_mlp(torch::kFloat32);
  const auto inner = which.make(model->parameters());
  for (int step = 0; step < variation.steps_before_wrapping; ++step) {
    inner->zero_grad();
    loss_of(model, batch_rows(step, 0, kBatch, kWidth, torch::kFloat32)).backward();
    inner->step();
  }
  if (variation.widens_state) {
    for (auto& [key, state] : inner->state()) {
      auto& sgd = static_cast<torch::optim::SGDParamState&>(*state);
      sgd.momentum_buffer(sgd.momentum_buffer().to(torch::kFloat64));
    }
  }
  DistributedOptimizer optimizer(*inner, *model, options);
  const std::int64_t rows = kBatch / runtime.size();
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    loss_of(model, batch_rows(step, runtime.rank() * rows, rows, kWidth, torch::kFloat32))
        .backward();
    optimizer.step();
  }
  return flat(*model);
}

class ShardedTrainingTest : public ShardedOptimizerTest,
                            public testing::WithParamInterface<OptimizerCase> {};

INSTANTIATE_TEST_SUITE_P(Optimizers, ShardedTrainingTest, testing::ValuesIn(cases()),
                         [](const auto& test) { return std::string(test.param.name); });

TEST_P(ShardedTrainingTest, Training_HasTheBitsOfOrdinaryTraining) {
  const at::Tensor whole = train(runtime_, GetParam(), with(Shard::None));
  for (const Shard mode : sharded_modes()) {
    const at::Tensor sharded = train(runtime_, GetParam(), with(mode));
    expect_alike(sharded, whole);
    expect_equal_on_all_ranks(sharded);
  }
}

TEST_P(ShardedTrainingTest, ExistingState_IsSharded) {
  const Variation late{.steps_before_wrapping = 3};
  const at::Tensor whole = train(runtime_, GetParam(), with(Shard::None), late);
  for (const Shard mode : sharded_modes()) {
    expect_alike(train(runtime_, GetParam(), with(mode), late), whole);
  }
}

TEST_F(ShardedOptimizerTest, ExistingStateInAnotherType_KeepsIt) {
  const OptimizerCase sgd{"sgd", [](Parameters parameters) {
                            return std::make_unique<torch::optim::SGD>(
                                std::move(parameters), torch::optim::SGDOptions(0.1).momentum(0.9));
                          }};
  const Variation wide{.steps_before_wrapping = 3, .widens_state = true};
  const at::Tensor whole = train(runtime_, sgd, with(Shard::None), wide);
  EXPECT_FALSE(
      at::equal(whole, train(runtime_, sgd, with(Shard::None), {.steps_before_wrapping = 3})));
  for (const Shard mode : sharded_modes()) {
    expect_alike(train(runtime_, sgd, with(mode), wide), whole);
  }
}

TEST_F(ShardedOptimizerTest, OptimizerOfTheUsersOwn_Trains) {
  const OptimizerCase own{"own", [](Parameters parameters) {
                            return std::make_unique<OwnOptimizer>(std::move(parameters));
                          }};
  const at::Tensor plainly = train(runtime_, own, with(Shard::None));
  for (const Shard mode : sharded_modes()) {
    const at::Tensor sharded = train(runtime_, own, with(mode));
    expect_alike(sharded, plainly);
    expect_equal_on_all_ranks(sharded);
  }
}

}  // namespace kolo::test::sharded_training_test
