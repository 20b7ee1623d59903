// Steps that a GradScaler skips on all ranks, and its use with join, process sets and several
// optimizers.
#include <cmath>
#include <cstdint>
#include <optional>
#include <set>
#include <vector>

#include "kolo/torch/autocast.hpp"
#include "support/mpi/variants.hpp"
#include "train/scaling.hpp"

namespace kolo::test::grad_scaler_steps_test {

const AlsoIn also_in({"alone", "messages"});

// --- steps that are skipped ---

struct Trained {
  at::Tensor parameters;
  std::set<std::int64_t> adam_steps;
};

/// Six steps of Adam. The first and the fourth overflow on `culprit`, or are left out without one.
class GradScalerSkipTest : public GradScalerTest {
 protected:
  Trained train(const DistributedOptimizer::Options& options, std::optional<int> culprit,
                std::size_t where, bool clips) {
    torch::nn::Sequential model = make_mlp(torch::kFloat32);
    torch::optim::Adam inner(model->parameters(), torch::optim::AdamOptions(1e-2).eps(1e-4));
    DistributedOptimizer optimizer(inner, *model, options);
    GradScaler scaler;
    int skipped = 0;
    for (int step = 0; step < 6; ++step) {
      const bool is_bad = step % 3 == 0;
      if (is_bad && !culprit) continue;
      optimizer.zero_grad();
      const at::Tensor before = flat(*model);
      scaler.scale(loss(model, step, is_bad ? *culprit : -1, where)).backward();
      if (clips) {
        scaler.unscale_(optimizer);
        const double norm = optimizer.clip_grad_norm_(0.05);
        EXPECT_EQ(std::isfinite(norm), !is_bad);
      }
      EXPECT_EQ(scaler.step(optimizer), !is_bad) << step;
      EXPECT_EQ(torch::equal(flat(*model), before), is_bad) << step;
      scaler.update();
      skipped += is_bad;
      EXPECT_EQ(scaler.get_scale(), 65536.0 / (1 << skipped)) << step;
    }
    Trained result{flat(*model), {}};
    for (const auto& [key, state] : inner.state()) {
      const auto& adam = static_cast<const torch::optim::AdamParamState&>(*state);
      if (adam.exp_avg().numel() > 0) result.adam_steps.insert(adam.step());
    }
    return result;
  }
};

TEST_F(GradScalerSkipTest, OverflowOnOneRank_SkipsTheStepOnAll) {
  for (const DistributedOptimizer::Options& options : all_layouts()) {
    for (const bool clips : {false, true}) {
      const Trained expected = train(options, std::nullopt, 0, clips);
      for (int culprit = 0; culprit < size(); ++culprit) {
        for (const std::size_t where : {std::size_t{0}, std::size_t{9}}) {  // of ten parameters
          const Trained trained = train(options, culprit, where, clips);
          expect_alike(trained.parameters, expected.parameters);
          for (const std::int64_t steps : trained.adam_steps) EXPECT_EQ(steps, 4);
        }
      }
    }
  }
}

TEST_F(GradScalerTest, GradientsOfASkippedStep_AreAsAfterAStep) {
  for (const Shard shard : all_modes()) {
    torch::nn::Sequential model = make_mlp(torch::kFloat32);
    torch::optim::SGD inner(model->parameters(), 0.1);
    DistributedOptimizer optimizer(inner, *model, with(shard));
    GradScaler scaler;
    for (int step = 0; step < 4; ++step) {
      const bool is_bad = step == 1;
      scaler.scale(loss(model, step, is_bad ? 0 : -1)).backward();
      EXPECT_EQ(scaler.step(optimizer), !is_bad) << step;
      scaler.update();
      const at::Tensor& gradient = model->parameters()[0].grad();
      EXPECT_EQ(gradient.defined(), shard == Shard::None);
      if (shard != Shard::None) continue;
      EXPECT_EQ(gradient.isinf().sum().item<int>(), is_bad ? 1 : 0);
      optimizer.zero_grad();
    }
  }
}

TEST_F(GradScalerTest, GradientsThatTheProgramChanged_Count) {
  for (const Shard shard : all_modes()) {
    Single model(with(shard));
    GradScaler scaler;
    model.backward(scaler, 1.0);
    model.optimizer.for_each_gradient(
        [](const std::string&, at::Tensor& gradient) { gradient.fill_(std::nanf("")); });
    EXPECT_FALSE(scaler.step(model.optimizer));
    EXPECT_EQ(model.value(), 1.0);
  }
}

TEST_F(GradScalerTest, SkipSynchronize_WorksAsWithHorovod) {
  Single model({.shard = Shard::None});
  GradScaler scaler;
  for (int step = 0; step < 3; ++step) {
    const bool is_bad = step == 1;
    model.optimizer.zero_grad();
    model.backward(scaler, is_bad && is_last() ? kInfinity : 3.0);
    model.optimizer.synchronize();
    scaler.unscale_(model.optimizer);
    model.optimizer.clip_grad_norm_(2.0);
    const auto guard = model.optimizer.skip_synchronize();
    EXPECT_EQ(scaler.step(model.optimizer), !is_bad);
    scaler.update();
  }
  EXPECT_NEAR(model.value(), 1.0 - 2 * 0.25 * 2.0, 1e-5);
}

TEST_F(GradScalerTest, StepsOfThisRankAlone_DoNotConcernOthers) {
  Single model({.shard = Shard::None});
  GradScaler scaler;
  const auto no_sync = model.optimizer.no_sync();
  const auto skip_synchronize = model.optimizer.skip_synchronize();
  for (int step = 0; step < 3 + rank(); ++step) {  // a different number on each rank
    model.optimizer.zero_grad();
    const bool is_bad = step == rank();
    model.backward(scaler, is_bad ? kInfinity : 1.0);
    EXPECT_EQ(scaler.step(model.optimizer), !is_bad);
    scaler.update();
  }
  EXPECT_EQ(model.value(), 1.0 - 0.25 * (2 + rank()));
  EXPECT_EQ(scaler.get_scale(), 32768.0);
}

TEST_F(GradScalerTest, SeveralOptimizers_AreServed) {
  for (const Shard shard : all_modes()) {
    Single generator(with(shard));
    Single discriminator(with(shard));
    GradScaler scaler;
    for (int step = 0; step < 4; ++step) {
      generator.optimizer.zero_grad();
      discriminator.optimizer.zero_grad();
      generator.backward(scaler, step % 2 == 1 && is_last() ? kInfinity : 1.0);
      discriminator.backward(scaler, step >= 2 && rank() == 0 ? kInfinity : 1.0);
      EXPECT_EQ(scaler.step(generator.optimizer), step % 2 == 0);
      EXPECT_EQ(scaler.step(discriminator.optimizer), step < 2);
      scaler.update();
      // Halved after the second, third and fourth step; only once if both optimizers overflow.
      EXPECT_EQ(scaler.get_scale(), 65536.0 / std::pow(2.0, step));
    }
    EXPECT_EQ(generator.value(), 1.0 - 0.25 * 2);
    EXPECT_EQ(discriminator.value(), 1.0 - 0.25 * 2);
  }
}

TEST_F(GradScalerTest, Update_FindsOverflowsIfNoStepHas) {
  Single model({.shard = Shard::Gradients});
  GradScaler scaler;
  for (int step = 0; step < 2; ++step) {
    model.backward(scaler, is_last() ? kInfinity : 1.0);
    scaler.unscale_(model.optimizer);
    scaler.update();
    EXPECT_EQ(scaler.get_scale(), 65536.0 / std::pow(2.0, step + 1));
    model.optimizer.zero_grad();
  }
}

// --- together with others ---

TEST_F(GradScalerTest, ProcessSet_DoesNotConcernOthers) {
  if (size() == 1) GTEST_SKIP() << "a set of fewer ranks has none";
  std::vector<int> members(static_cast<std::size_t>(size() - 1));
  for (int i = 0; i < size() - 1; ++i) members[static_cast<std::size_t>(i)] = i + 1;
  ProcessSet& set = runtime_.add_process_set(members);
  for (const Shard shard : all_modes()) {
    if (!set.included()) continue;
    DistributedOptimizer::Options options = with(shard);
    options.process_set = &set;
    Single model(options);
    GradScaler scaler;
    for (int step = 0; step < 3; ++step) {
      model.optimizer.zero_grad();
      model.backward(scaler, step == 1 && is_last() ? kInfinity : 1.0);
      EXPECT_EQ(scaler.step(model.optimizer), step != 1);
      scaler.update();
    }
    EXPECT_EQ(model.value(), 1.0 - 0.25 * 2);
  }
}

/// The last rank continues alone after two steps; the fourth step overflows. Rank 0 owns the
/// weight.
TEST_F(GradScalerTest, JoinedRanks_Follow) {
  for (DistributedOptimizer::Options options : all_layouts()) {
    for (const bool clips : {false, true}) {
      options.join_divisor = JoinDivisor::Active;
      Single model(options);
      GradScaler scaler;
      const int steps = is_last() ? 5 : 2;
      for (int step = 0; step < steps; ++step) {
        model.optimizer.zero_grad();
        model.backward(scaler, step == 3 ? kInfinity : 2.0);
        if (clips) {
          scaler.unscale_(model.optimizer);
          model.optimizer.clip_grad_norm_(1.0);
        }
        EXPECT_EQ(scaler.step(model.optimizer), step != 3);
        scaler.update();
      }
      model.optimizer.join();
      EXPECT_NEAR(model.value(), 1.0 - 0.25 * 4 * (clips ? 1.0 : 2.0), 1e-5);
    }
  }
}

TEST_F(GradScalerTest, OverflowsInCompression_AreFound) {
  for (const Shard shard : all_modes()) {
    Single model({.compression = Compression::fp16(), .shard = shard});
    GradScaler scaler;
    int taken = 0;
    for (int step = 0; step < 8; ++step) {
      model.optimizer.zero_grad();
      model.backward(scaler, 8.0);  // times 65536 it is infinite in fp16
      taken += scaler.step(model.optimizer);
      scaler.update();
      EXPECT_EQ(scaler.get_scale(), 65536.0 / std::pow(2.0, step + 1 - taken));
    }
    EXPECT_GT(taken, 0);
    if (size() > 1) {
      EXPECT_LT(taken, 8);
    }
    EXPECT_EQ(model.value(), 1.0 - 0.25 * 8 * taken);
  }
}

TEST_F(GradScalerTest, Autocast_Trains) {
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    for (const Shard shard : all_modes()) {
      torch::nn::Sequential model = make_mlp(torch::kFloat32);
      torch::optim::AdamW inner(model->parameters(), 1e-2);
      DistributedOptimizer optimizer(inner, *model, with(shard));
      GradScaler scaler;
      double first = 0.0;
      double last = 0.0;
      for (int step = 0; step < 60; ++step) {
        optimizer.zero_grad();
        at::Tensor own;
        {
          const Autocast autocast(type);
          own = loss(model, 0);
        }
        EXPECT_EQ(own.scalar_type(), at::kFloat);
        last = allreduce(own.detach()).item<double>();
        if (step == 0) first = last;
        scaler.scale(own).backward();
        scaler.unscale_(optimizer);
        optimizer.clip_grad_norm_(1.0);
        scaler.step(optimizer);
        scaler.update();
      }
      EXPECT_LT(last, 0.2 * first);
      expect_equal_on_all_ranks(flat(*model));
    }
  }
}

}  // namespace kolo::test::grad_scaler_steps_test
