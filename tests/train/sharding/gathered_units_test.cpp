// Shard::Full where ranks share no memory: parameters are gathered when operators use them.
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "kolo/collectives.hpp"
#include "kolo/error.hpp"
#include "support/mpi/variants.hpp"
#include "train/layer_units.hpp"
#include "train/sharding.hpp"
#include "train/training_fixture.hpp"

namespace kolo::test::gathered_units_test {

const AlsoIn also_in({"messages", "nodes"});

using namespace layer_units;

class GatheredUnitsTest : public TrainingTest {
 protected:
  using Order = std::function<std::vector<std::size_t>(int step)>;

  /// The parameters after steps that use the layers in this order.
  at::Tensor train(Shard shard, const Order& order) {
    Layers model;
    torch::optim::AdamW inner(model->parameters(), torch::optim::AdamWOptions(1e-2));
    DistributedOptimizer optimizer(inner, *model, layer_by_layer(shard));
    for (int step = 0; step < 5; ++step) {
      optimizer.zero_grad();
      model->forward(input(rank(), step), order(step)).square().sum().backward();
      optimizer.step();
    }
    return flat(*model);
  }
  void expect_trained_alike(const Order& order) {
    EXPECT_LT(largest_difference(train(Shard::Full, order), train(Shard::None, order)), 1e-5);
  }
};

TEST_F(GatheredUnitsTest, UnitsGatheredAhead_AreTwoAtMostToo) {
  if (!gathers_on_use()) GTEST_SKIP() << kNothingGathered;
  Layers model;
  torch::optim::SGD inner(model->parameters(), 0.1);
  DistributedOptimizer optimizer(inner, *model, layer_by_layer(Shard::Full));
  std::size_t most = 0;
  for (int step = 0; step < 4; ++step) {
    model->forward(input(rank(), step), ascending()).sum().backward();
    std::size_t layers = 0;
    for (auto& layer : model->layers)
      if (is_in_memory(layer->weight)) ++layers;
    most = std::max(most, layers);
    optimizer.step();
  }
  EXPECT_LE(most, 2U);
}

/// From the second step on, the next unit is on its way before an operator uses it.
TEST_F(GatheredUnitsTest, NextUnit_IsGatheredAhead) {
  if (!gathers_on_use()) GTEST_SKIP() << kNothingGathered;
  using namespace std::chrono_literals;
  Layers model;
  torch::optim::SGD inner(model->parameters(), 0.1);
  DistributedOptimizer optimizer(inner, *model, layer_by_layer(Shard::Full));
  const auto sent = [&] { return runtime_.world().metrics().bytes_sent; };
  std::uint64_t one_unit = 0;
  for (int step = 0; step < 2; ++step) {
    const std::uint64_t before = sent();
    at::Tensor values = torch::tanh(model->layers[0](input(rank(), step)));
    if (step == 0) {
      one_unit = sent() - before;
      ASSERT_GT(one_unit, 0U);
    } else {
      const auto give_up_at = std::chrono::steady_clock::now() + 60s;
      while (sent() - before < 2 * one_unit && std::chrono::steady_clock::now() < give_up_at) {
        std::this_thread::sleep_for(1ms);
      }
      EXPECT_EQ(sent() - before, 2 * one_unit);
    }
    for (std::size_t i = 1; i < kLayers; ++i) values = torch::tanh(model->layers[i](values));
    values.sum().backward();
    optimizer.step();
  }
}

TEST_F(GatheredUnitsTest, OrderOfUse_MayChange) {
  expect_trained_alike([](int step) {
    switch (step) {
      case 2: return std::vector<std::size_t>{5, 4, 3, 2, 1, 0};
      case 3: return std::vector<std::size_t>{0, 1, 0, 1, 2};  // the other layers are not used
      default: return ascending();
    }
  });
}

TEST_F(GatheredUnitsTest, Layers_MayBeUsedSeveralTimes) {
  expect_trained_alike(
      [](int) { return std::vector<std::size_t>{0, 1, 2, 0, 1, 2, 5, 0, 3, 4, 5}; });
}

TEST_F(GatheredUnitsTest, RanksThatUseDifferentUnits_GetAnErrorAtOnce) {
  if (!gathers_on_use()) GTEST_SKIP() << kNothingGathered;
  Layers model;
  torch::optim::SGD inner(model->parameters(), 0.1);
  DistributedOptimizer optimizer(inner, *model, layer_by_layer(Shard::Full));
  const std::size_t own = is_last() ? 3 : 2;
  const std::string text =
      text_thrown_by<c10::Error>([&] { model->layers[own](input(rank(), 0)); });
  expect_contains(text, "Kolo could not gather parameters");
  const std::string where = share_gathered_units() ? " into slot 0 on" : " on";
  expect_contains(text, "gathering unit 2 (layer2)" + where);
  expect_contains(text,
                  "gathering unit 3 (layer3)" + where + " rank " + std::to_string(size() - 1));
  expect_contains(text_thrown_by<MismatchError>([&] { optimizer.step(); }), "purpose differs");
  const at::Tensor sum = allreduce(torch::ones({3}), {.op = ReduceOp::Sum});  // the set still works
  EXPECT_TRUE(torch::equal(sum, torch::full({3}, static_cast<float>(size()))));
}

TEST_F(GatheredUnitsTest, RankThatSkipsBackward_GetsAnErrorAtOnce) {
  if (!gathers_on_use()) GTEST_SKIP() << kNothingGathered;
  Layers model;
  torch::optim::SGD inner(model->parameters(), 0.1);
  DistributedOptimizer optimizer(inner, *model, layer_by_layer(Shard::Full));
  const auto work = [&] {
    if (!is_last()) model->forward(input(rank(), 0), ascending()).sum().backward();
    optimizer.step();
  };
  if (is_last()) {
    expect_contains(text_thrown_by<MismatchError>(work), "the end of backward() on rank");
  } else {
    EXPECT_THROW(work(), c10::Error);
  }
}

TEST_F(GatheredUnitsTest, Views_FollowTheirParameter) {
  if (!gathers_on_use()) GTEST_SKIP() << kNothingGathered;
  Layers model;
  const at::Tensor transposed = model->layers[0]->weight.t();
  const at::Tensor expected = transposed.detach().clone();
  torch::optim::SGD inner(model->parameters(), 0.1);
  DistributedOptimizer optimizer(inner, *model, layer_by_layer(Shard::Full));
  model->forward(input(rank(), 0), ascending());  // releases the first layer
  EXPECT_FALSE(is_in_memory(transposed));
  EXPECT_TRUE(torch::equal(transposed.contiguous(), expected));
}

TEST_F(GatheredUnitsTest, BytesSent_AreThoseOfTwoGathersAndAReduction) {
  if (!gathers_on_use()) GTEST_SKIP() << kNothingGathered;
  torch::nn::Sequential model;
  for (int i = 0; i < 12; ++i) model->push_back(torch::nn::Linear(200, 200));
  torch::optim::SGD inner(model->parameters(), 0.1);
  DistributedOptimizer optimizer(inner, *model, {.shard = Shard::Full});
  for (int step = 0; step < 3; ++step) {
    model->forward(torch::ones({2, 200}) * rank()).sum().backward();
    optimizer.step();
  }
  const TrainingReport report = optimizer.report();
  const double ratio = static_cast<double>(report.sent_per_step) /
                       static_cast<double>(report.expected_sent_per_step);
  EXPECT_LE(ratio, 1.02);
  EXPECT_GT(ratio, 0.7);  // units at the end of forward() are not gathered again
}

}  // namespace kolo::test::gathered_units_test
