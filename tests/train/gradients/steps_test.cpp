// Calls between two steps, in different orders.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "kolo/error.hpp"
#include "kolo/torch/distributed_optimizer.hpp"
#include "kolo/torch/tensor_collectives.hpp"
#include "runtime/runtimes.hpp"
#include "support/mpi/variants.hpp"
#include "train/gradients/ramp_weight.hpp"

namespace kolo::test::steps_test {

const AlsoIn also_in({"groups"});

class OptimizerStepsTest : public RampWeightTest {};

TEST_F(OptimizerStepsTest, Synchronize_IsIdempotentAndStepUsesItsResult) {
  RampWeight model;
  for (int step = 1; step <= 3; ++step) {
    model.optimizer.zero_grad();
    model.backward(rank() * step, 3.0);
    model.optimizer.synchronize();
    model.optimizer.synchronize();
    EXPECT_TRUE(torch::allclose(model.weight.grad(), ramp(mean_rank() * step, 3.0)));
    const at::Tensor before = model.weight.detach().clone();
    model.weight.mutable_grad().fill_(step + rank());  // another reduction would average this
    model.optimizer.step();
    EXPECT_TRUE(torch::equal(before - model.weight, torch::full_like(before, step + rank())));
  }
}

TEST_F(OptimizerStepsTest, Clip_UsesTheNormOfTheReducedGradients) {
  const double infinity = std::numeric_limits<double>::infinity();
  for (const double type : {1.0, 2.0, 3.0, infinity}) {
    for (const double max_norm : {0.5, 1e6}) {
      RampWeight model;
      model.backward(rank() + 1, -2.0);
      const double norm = model.optimizer.clip_grad_norm_(max_norm, type);
      const at::Tensor mean = ramp(mean_rank() + 1, -2.0);
      const double expected =
          std::isinf(type) ? mean.abs().max().item<double>() : mean.norm(type).item<double>();
      EXPECT_NEAR(norm, expected, 1e-12) << type;
      const at::Tensor norms = allgather(torch::full({1}, norm, torch::kFloat64));
      EXPECT_EQ(norms.min().item<double>(), norms.max().item<double>());
      model.optimizer.step();
      const double scale = std::min(1.0, max_norm / expected);
      EXPECT_TRUE(torch::allclose(-model.weight, mean * scale, 1e-5)) << type << ' ' << max_norm;
    }
  }
}

TEST_F(OptimizerStepsTest, NoSync_AddsUpOnThisRankUntilABackwardWithoutIt) {
  const at::Tensor early = torch::zeros({2}, torch::requires_grad());  // used only under no_sync
  const at::Tensor weight = torch::zeros({2}, torch::requires_grad());
  torch::optim::SGD inner({early, weight}, 1.0);
  DistributedOptimizer optimizer(inner, DistributedOptimizer::NamedParameters{});
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    {
      const auto guard = optimizer.no_sync();
      for (int pass = 0; pass < 3; ++pass) {
        (weight.sum() * (rank() + 1) + early.sum() * 2 * rank()).backward();
      }
      EXPECT_TRUE(torch::equal(weight.grad(), torch::full({2}, 3.0 * (rank() + 1))));
    }
    (weight.sum() * 10).backward();
    optimizer.synchronize();
    EXPECT_TRUE(torch::allclose(weight.grad(), torch::full({2}, 3 * (mean_rank() + 1) + 10)));
    EXPECT_TRUE(torch::allclose(early.grad(), torch::full({2}, 6 * mean_rank())));
    optimizer.step();
  }
}

TEST_F(OptimizerStepsTest, SkipSynchronize_StepsThisRankAlone) {
  RampWeight model;
  {
    const auto apart = model.optimizer.no_sync();
    const auto alone = model.optimizer.skip_synchronize();
    model.backward(rank() + 1);
    model.optimizer.step();
    EXPECT_TRUE(torch::equal(-model.weight, ramp(rank() + 1)));
    model.optimizer.zero_grad();
  }
  model.backward(1.0, rank());
  {
    const auto alone = model.optimizer.skip_synchronize();
    EXPECT_THROW(model.optimizer.step(), InvalidArgument);  // its reduction is in flight
    model.optimizer.synchronize();
    model.optimizer.step();
  }
  EXPECT_TRUE(torch::allclose(-model.weight, ramp(rank() + 1) + ramp(1.0, mean_rank())));
}

TEST_F(OptimizerStepsTest, StepBeforeAllPasses_ReducesWhatHasArrived) {
  DistributedOptimizer::Options options;
  options.backward_passes_per_step = 3;
  RampWeight model(options);
  for (const int passes : {2, 3, 1}) {
    model.optimizer.zero_grad();
    model.weight.detach().zero_();
    for (int pass = 0; pass < passes; ++pass) model.backward(rank(), 1.0);
    model.optimizer.step();
    EXPECT_TRUE(torch::allclose(-model.weight, ramp(mean_rank() * passes, passes))) << passes;
  }
}

TEST_F(OptimizerStepsTest, Closure_IsEvaluatedOnceAndItsGradientsReduced) {
  const at::Tensor weight = torch::ones({1}, torch::requires_grad());
  torch::optim::SGD inner({weight}, 1.0);
  DistributedOptimizer optimizer(inner, {{"weight", weight}});
  int calls = 0;
  const at::Tensor loss = optimizer.step([&] {
    ++calls;
    optimizer.zero_grad();
    at::Tensor result = weight.sum() * (runtime_.rank() + 1);
    result.backward();
    return result;
  });
  EXPECT_EQ(calls, 1);
  EXPECT_DOUBLE_EQ(loss.item<double>(), runtime_.rank() + 1);  // this rank's own loss
  EXPECT_FLOAT_EQ(weight.item<float>(), 1.0F - static_cast<float>(runtime_.size() + 1) / 2.0F);
}

TEST_F(OptimizerStepsTest, FirstStep_MayBeRestarted) {
  std::vector<at::Tensor> weights;
  for (int i = 0; i < 4; ++i) weights.push_back(torch::zeros({i + 1}, torch::requires_grad()));
  torch::optim::SGD inner(weights, 1.0);
  DistributedOptimizer optimizer(inner, DistributedOptimizer::NamedParameters{});
  weights[2].sum().backward();  // arrives first, twice
  optimizer.zero_grad();
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    at::Tensor loss = torch::zeros({});
    for (int i = 0; i < 4; ++i)
      loss = loss + weights[static_cast<std::size_t>(i)].sum() * (i + rank());
    loss.backward();
    optimizer.synchronize();
    for (int i = 0; i < 4; ++i) {
      EXPECT_TRUE(torch::allclose(weights[static_cast<std::size_t>(i)].grad(),
                                  torch::full({i + 1}, i + mean_rank())))
          << step << ' ' << i;
    }
    optimizer.step();
  }
}

TEST_F(OptimizerStepsTest, LateGradients_AreRefusedBeforeTheyChangeAnything) {
  RampWeight model;
  const auto expect_refused = [&](const std::string& why) {
    const std::string text = text_thrown_by<InvalidArgument>([&] { model.backward(1e6); });
    expect_contains(text, "'weight'");
    expect_contains(text, why);
  };
  for (int step = 0; step < 3; ++step) {
    model.weight.detach().zero_();
    model.backward(rank(), step);
    expect_refused("more than backward_passes_per_step = 1");
    expect_refused("more than backward_passes_per_step = 1");
    model.optimizer.synchronize();
    expect_refused("after synchronize()");
    model.optimizer.step();
    EXPECT_TRUE(torch::allclose(-model.weight, ramp(mean_rank(), step))) << step;
    model.optimizer.zero_grad();
  }
}

TEST_F(OptimizerStepsTest, SecondPass_IsRefusedWhileTheBucketWaitsForOthers) {
  const at::Tensor ready = torch::zeros({4}, torch::requires_grad());
  const at::Tensor missing = torch::zeros({4}, torch::requires_grad());
  torch::optim::SGD inner({ready, missing}, 1.0);
  DistributedOptimizer::Options options;
  options.bucket_bytes = 1 << 20;  // one bucket
  DistributedOptimizer optimizer(inner, DistributedOptimizer::NamedParameters{}, options);
  const auto backward = [&] { (ready.sum() * (rank() + 1)).backward(); };
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    ready.detach().zero_();
    backward();
    expect_contains(text_thrown_by<InvalidArgument>(backward),
                    "more than backward_passes_per_step = 1");
    missing.sum().backward();
    optimizer.step();
    EXPECT_TRUE(torch::allclose(-ready, torch::full({4}, mean_rank() + 1))) << step;
  }
}

TEST_F(OptimizerStepsTest, RanksWithoutAnyGradient_TakePart) {
  RampWeight model;
  at::Tensor expected = ramp(0);
  for (int step = 0; step < 3 * size(); ++step) {
    model.optimizer.zero_grad();
    // In every size() steps: all ranks have a gradient, then all but one, … then the last one.
    if (rank() >= step % size()) {
      model.backward(rank() + 1.0, step);
    }
    model.optimizer.step();
    for (int r = step % size(); r < size(); ++r) expected -= ramp(r + 1.0, step) / size();
    EXPECT_TRUE(torch::allclose(model.weight, expected)) << step;
  }
  model.optimizer.zero_grad();
  model.optimizer.step();  // no rank has a gradient
  EXPECT_TRUE(torch::allclose(model.weight, expected));
  EXPECT_FALSE(model.weight.grad().defined());
}

/// With so many groups.
class DifferentHeadsTest : public OptimizerStepsTest, public testing::WithParamInterface<int> {};

INSTANTIATE_TEST_SUITE_P(Groups, DifferentHeadsTest, testing::Values(0, 1, 2),
                         testing::PrintToStringParamName());

/// A group that contains several heads is complete on no rank.
TEST_P(DifferentHeadsTest, DifferentRanks_TrainDifferentHeads) {
  const auto heads_of = [&](int step, int r) { return (step + r) % 3; };  // one of 3 per rank
  std::vector<at::Tensor> heads;
  for (int i = 0; i < 3; ++i) heads.push_back(torch::zeros({5}, torch::requires_grad()));
  const at::Tensor trunk = torch::zeros({5}, torch::requires_grad());
  torch::optim::SGD inner({trunk, heads[0], heads[1], heads[2]}, 1.0);
  DistributedOptimizer::Options options;
  options.bucket_bytes = 64;
  if (GetParam() == 1) options.groups = {{trunk, heads[0], heads[1], heads[2]}};
  if (GetParam() == 2) options.groups = {{trunk, heads[0]}, {heads[1], heads[2]}};
  DistributedOptimizer optimizer(inner, DistributedOptimizer::NamedParameters{}, options);
  for (int step = 0; step < 9; ++step) {
    optimizer.zero_grad();
    const at::Tensor& head = heads[static_cast<std::size_t>(heads_of(step, rank()))];
    ((trunk + head) * (torch::arange(5) + rank() + step)).sum().backward();
    optimizer.synchronize();
    for (int i = 0; i < 3; ++i) {
      at::Tensor expected = torch::zeros({5});
      bool is_used = false;
      for (int r = 0; r < size(); ++r) {
        if (heads_of(step, r) != i) continue;
        expected += (torch::arange(5) + r + step) / size();
        is_used = true;
      }
      const at::Tensor& gradient = heads[static_cast<std::size_t>(i)].grad();
      ASSERT_EQ(gradient.defined(), is_used) << step << ' ' << i;
      EXPECT_TRUE(!is_used || torch::allclose(gradient, expected)) << step << ' ' << i;
    }
    EXPECT_TRUE(torch::allclose(trunk.grad(), torch::arange(5) + mean_rank() + step)) << step;
    optimizer.step();
  }
}

}  // namespace kolo::test::steps_test
