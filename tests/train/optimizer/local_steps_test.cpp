// Local SGD: each rank steps alone, and parameters are averaged now and then.
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "kolo/error.hpp"
#include "kolo/torch/distributed_optimizer.hpp"
#include "kolo/torch/grad_scaler.hpp"
#include "train/sharding.hpp"
#include "train/small_training.hpp"
#include "train/training_fixture.hpp"

namespace kolo::test::local_steps_test {

/// Two weights of different dtypes that start at zero, with learning rate 1.
struct TwoWeights {
  explicit TwoWeights(DistributedOptimizer::Options options)
      : optimizer(inner, {{"weight", weight}, {"wide", wide}}, std::move(options)) {}

  /// The gradient is `gradient` everywhere, and -2 times that for `wide`.
  at::Tensor loss(double gradient) {
    return (weight.to(torch::kFloat64).sum() - 2.0 * wide.sum()) * gradient;
  }
  double value() const { return weight[6].item<double>(); }
  void expect(double value, const std::string& what = {}) const {
    EXPECT_NEAR(weight[0].item<double>(), value, 1e-5) << what;
    EXPECT_NEAR(wide[1].item<double>(), -2.0 * value, 1e-6) << what;
  }

  at::Tensor weight = torch::zeros({7}, torch::requires_grad());
  at::Tensor wide = torch::zeros({3}, torch::dtype(torch::kFloat64).requires_grad(true));
  torch::optim::SGD inner{{weight, wide}, 1.0};
  DistributedOptimizer optimizer;
};

DistributedOptimizer::Options local(int period, std::int64_t start_step = 0) {
  DistributedOptimizer::Options options = with(Shard::None);
  options.local_sgd = {.period = period, .start_step = start_step};
  return options;
}

class LocalStepsTest : public TrainingTest {
 protected:
  double mean_rank() const { return (size() - 1) / 2.0; }
};

TEST_F(LocalStepsTest, Parameters_AreAveragedEveryPeriodSteps) {
  for (const int period : {1, 3}) {
    for (const std::int64_t start : {0, 2}) {
      TwoWeights model(local(period, start));
      double own = 0.0;   // this rank's value, with gradients of rank + step
      double mean = 0.0;  // the mean of all ranks' values
      for (int step = 0; step < 9; ++step) {
        model.optimizer.zero_grad();
        model.loss(rank() + step).backward();
        model.optimizer.step();
        own -= rank() + step;
        mean -= mean_rank() + step;
        const bool is_common = step < start || (step - start + 1) % period == 0;
        if (is_common) own = mean;
        model.expect(own, std::to_string(period) + ' ' + std::to_string(step));
      }
    }
  }
}

TEST_F(LocalStepsTest, ParametersOf16Bits_AreAveragedInFloat32) {
  const auto type = torch::dtype(torch::kBFloat16).requires_grad(true);
  const at::Tensor weight = torch::full({300}, rank() == 0 ? 256 : 1, type);  // 257 has 9 bits
  torch::optim::SGD inner({weight}, 1.0);
  DistributedOptimizer optimizer(inner, {{"weight", weight}}, local(1));
  (weight * 0.0).sum().backward();
  optimizer.step();
  const double mean = (255.0 + size()) / size();
  const at::Tensor expected = torch::full({300}, mean).to(torch::kBFloat16);
  expect_equal(weight.detach(), expected);
}

TEST_F(LocalStepsTest, Float64Parameters_AreAveragedInFloat64) {
  const auto type = torch::dtype(torch::kFloat64).requires_grad(true);
  const at::Tensor weight = torch::full({3}, 1.0 + 0x1p-40 * rank(), type);  // no float32 has it
  torch::optim::SGD inner({weight}, 1.0);
  DistributedOptimizer optimizer(inner, {{"weight", weight}}, local(1));
  (weight * 0.0).sum().backward();
  optimizer.step();
  EXPECT_NEAR(weight[2].item<double>(), 1.0 + 0x1p-40 * mean_rank(), 1e-15);
}

TEST_F(LocalStepsTest, Clipping_IsOfOwnGradients) {
  TwoWeights model(local(2));
  for (int step = 0; step < 2; ++step) {
    model.optimizer.zero_grad();
    model.loss(rank() + 1).backward();
    const double norm = (rank() + 1) * std::sqrt(7.0 + 4.0 * 3.0);
    EXPECT_NEAR(model.optimizer.clip_grad_norm_(0.5), norm, 1e-5);
    model.optimizer.step();
  }
  model.expect(-1.0 / std::sqrt(19.0));  // equal on all ranks, and so is the average
}

TEST_F(LocalStepsTest, Counts_AreThoseOfTheRank) {
  DistributedOptimizer::Options options = local(2, 1);
  options.backward_passes_per_step = 2;
  TwoWeights model(options);
  double own = 0.0;
  for (int step = 0; step < 3; ++step) {
    model.optimizer.zero_grad();
    model.optimizer.backward(model.loss(3.0), rank() + 1);
    model.optimizer.backward(model.loss(2.0), 1);
    model.optimizer.step();
    const double common = 5.0 * size() / (size() + size() * (size() + 1) / 2.0);
    own -= step == 0 ? common : 5.0 / (rank() + 2);
    if (step < 2) model.expect(own);
  }
  double mean = 0.0;
  for (int each = 0; each < size(); ++each) mean += 2.0 * 5.0 / (each + 2) / size();
  model.expect(-5.0 * size() / (size() + size() * (size() + 1) / 2.0) - mean);
}

TEST_F(LocalStepsTest, OverflowOfOneRank_SkipsItsStepAndNoAverage) {
  TwoWeights model(local(2));
  GradScaler scaler;
  for (int step = 0; step < 4; ++step) {
    model.optimizer.zero_grad();
    const bool overflows = is_last() && step == 1;
    scaler.scale(model.loss(overflows ? std::numeric_limits<double>::infinity() : 1.0)).backward();
    EXPECT_EQ(scaler.step(model.optimizer), !overflows);
    scaler.update();
    if (step % 2 == 1) model.optimizer.check_replicas();
  }
  model.expect(-4.0 + 1.0 / size());
}

TEST_F(LocalStepsTest, Save_AveragesFirst) {
  const CommonFolder folder;
  TwoWeights model(local(10, 1));
  for (int step = 0; step < 3; ++step) {
    model.optimizer.zero_grad();
    model.loss(rank()).backward();
    model.optimizer.step();
  }
  model.optimizer.save(folder.path());
  model.expect(-3.0 * mean_rank());
  model.optimizer.check_replicas();

  TwoWeights resumed(local(2, 1));
  resumed.optimizer.load(folder.path());
  resumed.expect(-3.0 * mean_rank());
  resumed.loss(rank()).backward();  // step 3 is the third local step: not averaged
  resumed.optimizer.step();
  resumed.expect(-3.0 * mean_rank() - rank());
  resumed.optimizer.zero_grad();
  resumed.loss(rank()).backward();
  resumed.optimizer.step();
  resumed.expect(-5.0 * mean_rank());

  model.loss(rank()).backward();
  model.optimizer.step();
  model.optimizer.save_full_state(folder.path() / "all.safetensors");
  model.optimizer.check_replicas();
}

TEST_F(LocalStepsTest, LaterParameters_AreAveragedToo) {
  TwoWeights model(local(2));
  const at::Tensor later = torch::zeros({4}, torch::requires_grad());
  for (int step = 0; step < 2; ++step) {
    if (step == 1) {
      model.optimizer.add_param_group(torch::optim::OptimizerParamGroup({later}));
    }
    model.inner.zero_grad();
    model.loss(rank()).backward();
    if (step == 1) (later * rank()).sum().backward();
    model.optimizer.step();
  }
  expect_equal(later.detach(), torch::full({4}, -mean_rank()));
}

TEST_F(LocalStepsTest, OptionsThatMakeNoSense_AreRefused) {
  const auto construct = [&](Shard shard, LocalSgd schedule) {
    DistributedOptimizer::Options options = with(shard);
    options.local_sgd = schedule;
    TwoWeights model(options);
  };
  for (const Shard shard : sharded_modes()) {
    expect_refused([&] { construct(shard, {.period = 4}); }, "Use shard = none.");
  }
  expect_refused([&] { construct(Shard::None, {.period = is_last() ? -1 : 2}); }, "period -1");
  expect_refused([&] { construct(Shard::None, {.period = 2, .start_step = -5}); }, "step -5");
  if (size() == 1) GTEST_SKIP() << "the rest: one rank differs from nobody";
  expect_refused<MismatchError>([&] { construct(Shard::None, {.period = is_last() ? 3 : 2}); },
                                "local_sgd.period");
}

TEST_F(LocalStepsTest, Join_IsRefused) {
  TwoWeights model(local(4, 100));
  expect_refused([&] { model.optimizer.join(); }, "join() with local_sgd");
}

}  // namespace kolo::test::local_steps_test
