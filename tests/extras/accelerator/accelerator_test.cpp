// The Accelerator's steps, and messages between ranks.
#include <functional>
#include <utility>
#include <vector>

#include "extras/accelerator/accelerator_fixture.hpp"
#include "kolo/torch/deferred.hpp"

namespace kolo::test::accelerator_test {

using torch::optim::SGD;
using torch::optim::SGDOptions;

// --- the mean over samples ---

/// Weights of 23 samples after two steps of 12 and 11 samples: three batches of up to 4 samples per
/// step, in order. The last batch has 3 samples, so one of four ranks has none.
at::Tensor after_two_steps(
    Shard shard,
    const std::function<void(Accelerator&, Weights&, const at::Tensor& samples)>& backward) {
  Weights model(23);
  SGD sgd(model.parameters(), SGDOptions(1.0));
  Accelerator accelerator({.shard = shard, .gradient_accumulation_steps = 3});
  auto batches = accelerator.prepare(model, sgd, numbers(23), {.batch_size = 4, .shuffle = false});
  EXPECT_EQ(batches.size(), 6U);
  std::vector<bool> steps;
  for (auto& batch : batches) {
    backward(accelerator, model, batch.target);
    EXPECT_EQ(accelerator.is_accumulating(), steps.size() % 3 != 2);
    steps.push_back(accelerator.step());
  }
  EXPECT_EQ(steps, (std::vector<bool>{false, false, true, false, false, true}));
  EXPECT_EQ(accelerator.steps(), 2);
  EXPECT_EQ(accelerator.epoch(), 1);
  return model.value();
}

TEST_F(AcceleratorTest, Step_UsesTheMeanOverTheSamplesOfItsPasses) {
  const at::Tensor expected =
      -torch::cat({torch::full({12}, 1.0 / 12), torch::full({11}, 1.0 / 11)}).to(torch::kFloat32);
  for (const Shard shard : all_modes()) {
    const at::Tensor got = after_two_steps(
        shard, [](Accelerator& accelerator, Weights& model, const at::Tensor& samples) {
          accelerator.backward(model.mean_weight(samples));
        });
    EXPECT_LT(largest_difference(got, expected), 1e-6) << name_of(shard);
  }
}

TEST_F(AcceleratorTest, DropLast_LeavesOutTheSmallerBatch) {
  Weights model(23);
  SGD sgd(model.parameters(), SGDOptions(1.0));
  Accelerator accelerator({.gradient_accumulation_steps = 2});
  auto batches = accelerator.prepare(model, sgd, numbers(23),
                                     {.batch_size = 4, .shuffle = false, .drop_last = true});
  EXPECT_EQ(batches.size(), 5U);
  for (int epoch = 0; epoch < 2; ++epoch) {
    for (auto& batch : batches) {
      accelerator.backward(model.mean_weight(batch.target));
      accelerator.step();
    }
  }
  EXPECT_EQ(accelerator.steps(), 6);
  EXPECT_EQ(accelerator.epoch(), 2);
  const at::Tensor expected =
      -2 * torch::cat({torch::full({16}, 1.0 / 8), torch::full({4}, 0.25), torch::zeros({3})});
  EXPECT_LT(largest_difference(model.value(), expected), 1e-6);
}

/// Sample i contains i % 3 tokens.
TEST_F(AcceleratorTest, LossPerToken_IsDividedByAllTokensOfTheStep) {
  const at::Tensor tokens = torch::arange(23).remainder(3);
  const at::Tensor expected = -torch::cat({tokens.slice(0, 0, 12) / 12, tokens.slice(0, 12) / 10});
  for (const Shard shard : all_modes()) {
    const at::Tensor got = after_two_steps(
        shard, [&](Accelerator& accelerator, Weights& model, const at::Tensor& samples) {
          const at::Tensor own = tokens.index_select(0, samples);
          accelerator.backward((model.weights.index_select(0, samples) * own).sum(),
                               own.sum().item<std::int64_t>());
        });
    EXPECT_LT(largest_difference(got, expected), 1e-6) << name_of(shard);
  }
}

TEST_F(AcceleratorTest, BackwardAfterZeroGrad_RunsThePassAgain) {
  Weights model(8);
  SGD sgd(model.parameters(), SGDOptions(1.0));
  Accelerator accelerator({.gradient_accumulation_steps = 2});
  auto batches = accelerator.prepare(model, sgd, numbers(8), {.batch_size = 4});
  int pass = 0;
  for (auto& batch : batches) {
    accelerator.backward(model.mean_weight(batch.target));
    if (++pass == 1) {
      accelerator.optimizer().zero_grad();
      accelerator.backward(model.mean_weight(batch.target));
    }
    accelerator.step();
  }
  EXPECT_LT(largest_difference(model.value(), torch::full({8}, -0.125)), 1e-6);
}

TEST_F(AcceleratorTest, LeftLoop_DropsTheGradientsOfItsStep) {
  Weights model(12);
  SGD sgd(model.parameters(), SGDOptions(1.0));
  Accelerator accelerator({.gradient_accumulation_steps = 2});
  auto batches = accelerator.prepare(model, sgd, numbers(12), {.batch_size = 4, .shuffle = false});
  for (const std::int64_t epoch : accelerator.epochs(2)) {
    for (auto& batch : batches) {
      accelerator.backward(model.mean_weight(batch.target));
      accelerator.step();
      if (epoch == 0) break;
    }
  }
  const at::Tensor expected = -torch::cat({torch::full({8}, 1.0 / 8), torch::full({4}, 0.25)});
  EXPECT_LT(largest_difference(model.value(), expected), 1e-6);
}

TEST_F(AcceleratorTest, LoopLeftAtItsLastBatch_IsFollowedByTheNextEpoch) {
  Weights model(8);
  SGD sgd(model.parameters(), SGDOptions(1.0));
  Accelerator accelerator;
  auto batches = accelerator.prepare(model, sgd, numbers(8), {.batch_size = 4});
  int seen = 0;
  for (int loop = 0; loop < 3; ++loop) {
    for (auto& batch : batches) {
      accelerator.backward(model.mean_weight(batch.target));
      accelerator.step();
      if (++seen == 2) break;
    }
  }
  EXPECT_EQ(seen, 6);
  EXPECT_EQ(accelerator.epoch(), 3);
}

TEST_F(AcceleratorTest, DeferredModel_HasItsParametersAfterPrepare) {
  for (const Shard shard : {Shard::None, Shard::Full}) {
    const auto model = deferred<Weights>(std::size_t{8}, 2.0);
    SGD sgd(model->parameters(), SGDOptions(1.0));
    Accelerator accelerator({.shard = shard});
    accelerator.prepare(*model, sgd);
    expect_equal(model->value(), torch::full({8}, 2.0));
  }
}

TEST_F(AcceleratorTest, MixedPrecision_HoldsInBackwardAndAutocast) {
  for (const auto& [precision, type] : {std::pair{Precision::None, torch::kFloat32},
                                        std::pair{Precision::BFloat16, torch::kBFloat16},
                                        std::pair{Precision::Float16, torch::kHalf}}) {
    torch::nn::Sequential model = make_mlp(torch::kFloat32);
    SGD sgd(model->parameters(), SGDOptions(0.1));
    Accelerator accelerator({.mixed_precision = precision});
    accelerator.prepare(*model, sgd);
    const at::Tensor rows = batch_rows(0, 3 * rank(), 3, kWidth, torch::kFloat32);
    at::ScalarType seen = torch::kDouble;
    accelerator.backward([&] {
      const at::Tensor output = model->forward(rows);
      seen = output.scalar_type();
      return output.to(torch::kFloat32).pow(2).mean();
    });
    EXPECT_TRUE(accelerator.step());
    EXPECT_EQ(seen, type);
    const Autocast autocast = accelerator.autocast();
    EXPECT_EQ(model->forward(rows).scalar_type(), type);
  }
}

// --- agreement between ranks ---

TEST_F(AcceleratorTest, Print_WritesOnTheFirstRank) {
  Weights model(4);
  SGD sgd(model.parameters(), SGDOptions(1.0));
  Accelerator accelerator({.progress_bar = true});
  accelerator.prepare(model, sgd);
  testing::internal::CaptureStdout();
  accelerator.print("epoch ", 3, ": ", 97.5, " %");
  EXPECT_EQ(testing::internal::GetCapturedStdout(), rank() == 0 ? "epoch 3: 97.5 %\n" : "");
}

}  // namespace kolo::test::accelerator_test
