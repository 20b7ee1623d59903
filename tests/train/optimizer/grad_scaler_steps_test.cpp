// Steps that a GradScaler skips on all ranks, and its use with join and process sets.
#include <cmath>
#include <vector>

#include "support/mpi/variants.hpp"
#include "train/scaling.hpp"

namespace kolo::test::grad_scaler_steps_test {

const AlsoIn also_in({"alone", "messages"});

// --- steps that are skipped ---

/// One element of one gradient, so that one rank alone has it in its shard.
TEST_F(GradScalerTest, OverflowOfOneElement_SkipsTheStepOnAll) {
  for (const DistributedOptimizer::Options& options : all_layouts()) {
    torch::nn::Sequential model = make_mlp(torch::kFloat32);
    torch::optim::SGD inner(model->parameters(), 0.1);
    DistributedOptimizer optimizer(inner, *model, options);
    GradScaler scaler;
    for (std::size_t where = 0; where < model->parameters().size(); ++where) {
      optimizer.zero_grad();
      const at::Tensor before = flat(*model);
      scaler.scale(loss(model, 0, size() - 1, where)).backward();
      EXPECT_FALSE(scaler.step(optimizer)) << where;
      scaler.update();
      EXPECT_TRUE(torch::equal(flat(*model), before)) << where;
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

}  // namespace kolo::test::grad_scaler_steps_test
