// Misuse of backward(loss_sum, count) that would train wrongly has the same result on all ranks.
#include <string>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "kolo/error.hpp"
#include "kolo/torch/distributed_optimizer.hpp"
#include "torch/optimizer/counted_training.hpp"
#include "torch/sharding.hpp"

namespace kolo::test::loss_normalization_misuse_test {

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
    expect_refused([&] { model.optimizer.zero_grad(); }, "got the count -3");
    model.optimizer.zero_grad();
    expect_usable(model);
  }
}

TEST_F(LossNormalizationMisuseTest, Adasum_IsRefused) {
  OneWeight model({.op = ReduceOp::Adasum});
  expect_refused([&] { model.optimizer.backward(model.loss(1.0), 1); }, "with op Adasum");
}

}  // namespace kolo::test::loss_normalization_misuse_test
