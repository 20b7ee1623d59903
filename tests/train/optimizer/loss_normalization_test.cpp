// backward(loss_sum, count): the gradients are those of the sum of all losses divided by the sum of
// all counts.
#include <cstdint>
#include <string>
#include <utility>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "kolo/torch/distributed_optimizer.hpp"
#include "kolo/torch/grad_scaler.hpp"
#include "train/sharding.hpp"
#include "train/training_fixture.hpp"

namespace kolo::test::loss_normalization_test {

/// A weight of five elements that starts at zero, with learning rate 1.
struct OneWeight {
  explicit OneWeight(DistributedOptimizer::Options options = {},
                     torch::ScalarType type = torch::kFloat64)
      : weight(torch::zeros({5}, torch::dtype(type).requires_grad(true))),
        inner({weight}, 1.0),
        optimizer(inner, {{"weight", weight}}, std::move(options)) {}

  /// Every element has the gradient `gradient`.
  at::Tensor loss(double gradient) { return (weight.to(torch::kFloat64) * gradient).sum(); }
  double value() const { return weight[4].item<double>(); }

  at::Tensor weight;
  torch::optim::SGD inner;
  DistributedOptimizer optimizer;
};

/// Counts and gradients that differ between ranks.
class CountedTraining : public TrainingTest {
 protected:
  // On this rank, and over all ranks.
  std::int64_t own_count() const { return 3 * rank() + 1; }
  double own_gradient() const { return 10.0 * rank() - 4.0; }
  double all_counts() const { return 1.5 * size() * (size() - 1) + size(); }
  double all_gradients() const { return 5.0 * size() * (size() - 1) - 4.0 * size(); }
  double expected() const { return all_gradients() / all_counts(); }

  /// Expects that a counted step works, for instance after an error.
  void expect_usable(OneWeight& model) {
    const double before = model.value();
    model.optimizer.zero_grad();
    model.optimizer.backward(model.loss(own_gradient()), own_count());
    model.optimizer.step();
    EXPECT_NEAR(before - model.value(), expected(), 1e-12);
  }
};

class LossNormalizationTest : public CountedTraining {};

/// The wrapped optimizer's zero_grad() drops them, with or without passes afterwards.
TEST_F(LossNormalizationTest, PassesUnderNoSync_AreForgottenWithTheirGradients) {
  for (const Shard shard : {Shard::None, Shard::Optimizer, Shard::Gradients, Shard::Full}) {
    OneWeight model(with(shard));
    for (int step = 0; step < 4; ++step) {
      const double before = model.value();
      {
        const auto guard = model.optimizer.no_sync();
        model.optimizer.backward(model.loss(1e6), 1000);
      }
      if (step % 2 == 0 || rank() == 0) model.inner.zero_grad();
      const bool runs = step % 2 == 0 || rank() != 0;  // else rank 0 has no pass in this step
      if (runs) model.optimizer.backward(model.loss(own_gradient()), own_count());
      model.optimizer.step();
      model.optimizer.zero_grad();
      if (step % 2 == 0) {
        EXPECT_NEAR(before - model.value(), expected(), 1e-12) << step;
      } else if (size() > 1) {
        const double others = size() - 1;
        const double gradients = all_gradients() + 4.0 + 1e6 * others;
        EXPECT_NEAR(before - model.value(), gradients / (all_counts() - 1 + 1000 * others), 1e-6);
      }
    }
  }
}

TEST_F(LossNormalizationTest, RankWithoutPass_TakesPart) {
  OneWeight model;
  for (int step = 0; step < 3; ++step) {
    model.optimizer.zero_grad();
    const double before = model.value();
    if (rank() > 0) model.optimizer.backward(model.loss(own_gradient()), own_count());
    model.optimizer.step();
    const double expected = size() == 1 ? 0.0 : (all_gradients() + 4.0) / (all_counts() - 1.0);
    EXPECT_NEAR(before - model.value(), expected, 1e-12) << step;
  }
}

TEST_F(LossNormalizationTest, NoSamplesAtAll_AreAStepWithoutGradients) {
  OneWeight model;
  expect_usable(model);
  const double before = model.value();
  model.optimizer.zero_grad();
  GradScaler scaler;
  model.optimizer.backward(scaler.scale({}), 0);
  EXPECT_TRUE(scaler.step(model.optimizer));
  scaler.update();
  EXPECT_FALSE(model.weight.grad().defined());
  EXPECT_EQ(model.value(), before);
  expect_usable(model);
}

TEST_F(LossNormalizationTest, LargeSums_FitIntoFloat16) {
  constexpr std::int64_t kTokens = 200'000;  // sums of gradients of 1 and 2 overflow float16
  for (const bool is_narrow : {false, true}) {
    OneWeight model({.compression = is_narrow ? Compression::none() : Compression::fp16()},
                    is_narrow ? torch::kFloat16 : torch::kFloat32);
    for (int step = 1; step <= 3; ++step) {
      if (step == 1) {
        const auto guard = model.optimizer.no_sync();
        model.optimizer.backward(model.loss(3.0), 3);
      }
      model.optimizer.backward(model.loss(static_cast<double>(kTokens)), kTokens);
      model.optimizer.step();
      model.optimizer.zero_grad();
      EXPECT_NEAR(-model.value(), step, 0.01 * step);
    }
  }
}

TEST_F(LossNormalizationTest, Attempts_BeginAnewWhenTheProgramHasDroppedGradients) {
  OneWeight model({.backward_passes_per_step = 2});
  model.optimizer.backward(model.loss(7.0), 1000);
  model.weight.mutable_grad().reset();
  if (rank() == 0) {
    model.optimizer.backward({}, 0);  // no gradient shows that the others were dropped
  } else {
    model.optimizer.backward(model.loss(own_gradient()), own_count());
  }
  model.optimizer.step();
  const double expected = size() == 1 ? 0.0 : (all_gradients() + 4.0) / (all_counts() - 1.0);
  EXPECT_NEAR(-model.value(), expected, 1e-12);
}

TEST_F(LossNormalizationTest, StepAlone_DividesByOwnCount) {
  OneWeight model;
  const auto apart = model.optimizer.no_sync();
  const auto alone = model.optimizer.skip_synchronize();
  model.optimizer.backward(model.loss(6.0), 2 + rank());
  model.optimizer.step();
  EXPECT_NEAR(-model.value(), 6.0 / (2 + rank()), 1e-12);
}

// --- misuse that would train wrongly has the same result on all ranks ---

class LossNormalizationMisuseTest : public CountedTraining {};

TEST_F(LossNormalizationMisuseTest, MixedPasses_AreAnErrorOnAllRanks) {
  for (const Shard shard : {Shard::None, Shard::Optimizer, Shard::Gradients}) {
    DistributedOptimizer::Options options = with(shard);
    options.backward_passes_per_step = 2;
    OneWeight model(options);
    for (int step = 0; step < 3; ++step) {
      model.optimizer.backward(model.loss(1.0), 1);
      if (is_last()) {
        model.loss(1.0).backward();
      } else {
        model.optimizer.backward(model.loss(1.0), 1);
      }
      expect_refused([&] { model.optimizer.step(); },
                     "a backward() without count on rank " + std::to_string(size() - 1));
      EXPECT_FALSE(model.weight.grad().defined());
      expect_usable(model);
    }
  }
}

TEST_F(LossNormalizationMisuseTest, PlainRank_IsAnErrorOnAllRanks) {
  OneWeight model;
  if (size() == 1) GTEST_SKIP() << "needs two ranks";
  for (int step = 0; step < 2; ++step) {
    if (rank() == 0) {
      model.loss(1.0).backward();
    } else {
      model.optimizer.backward(model.loss(1.0), 1);
    }
    expect_refused([&] { model.optimizer.step(); }, "a backward() without count on rank 0.");
    expect_usable(model);
  }
}

TEST_F(LossNormalizationMisuseTest, PassUnderNoSyncWithoutCount_IsFoundWhileItsGradientIsThere) {
  OneWeight model;
  for (const bool is_dropped : {false, true}) {
    {
      const auto guard = model.optimizer.no_sync();
      model.loss(1.0).backward();
    }
    if (is_dropped) model.weight.mutable_grad().reset();
    model.optimizer.backward(model.loss(own_gradient()), own_count());
    if (is_dropped) {
      model.optimizer.step();
    } else {
      expect_refused([&] { model.optimizer.step(); }, "a backward() without count on rank 0");
    }
    model.optimizer.zero_grad();
  }
  EXPECT_NEAR(-model.value(), expected(), 1e-12);
}

TEST_F(LossNormalizationMisuseTest, WrongArguments_AreErrorsOnAllRanks) {
  for (const Shard shard : {Shard::None, Shard::Gradients}) {
    OneWeight model(with(shard));
    model.optimizer.backward(model.loss(1.0), is_last() ? -3 : 1);
    expect_refused([&] { model.optimizer.synchronize(); },
                   "on rank " + std::to_string(size() - 1) + " got the count -3");
    expect_usable(model);
    model.optimizer.backward(is_last() ? at::Tensor() : model.loss(1.0), 2);
    expect_refused([&] { model.optimizer.clip_grad_norm_(1.0); },
                   "got an undefined loss_sum with the count 2");
    expect_usable(model);
    model.optimizer.backward(is_last() ? model.loss(1.0).detach() : model.loss(1.0), 2);
    expect_refused([&] { model.optimizer.step(); }, "with the count 2 a loss_sum without a graph");
    expect_usable(model);
    model.optimizer.backward(model.loss(1.0), is_last() ? -3 : 1);
    model.optimizer.zero_grad();  // what is dropped may be wrong
    expect_usable(model);
  }
}

TEST_F(LossNormalizationMisuseTest, Adasum_IsRefused) {
  OneWeight model({.op = ReduceOp::Adasum});
  expect_refused([&] { model.optimizer.backward(model.loss(1.0), 1); }, "with op Adasum");
}

}  // namespace kolo::test::loss_normalization_test
