// Calls between two steps, in different orders.
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "kolo/error.hpp"
#include "kolo/torch/distributed_optimizer.hpp"
#include "kolo/torch/tensor_collectives.hpp"
#include "runtime/runtimes.hpp"
#include "support/mpi/variants.hpp"
#include "train/training_fixture.hpp"

namespace kolo::test::steps_test {

const AlsoIn also_in({"groups"});

class OptimizerStepsTest : public TrainingTest {
 protected:
  double mean_rank() const { return (size() - 1) / 2.0; }
};

/// A weight that starts at zero, with learning rate 1.
struct RampWeight {
  /// Adds factor * [0, 1, 2, 3] + offset to the gradient.
  void backward(double factor, double offset = 0) {
    (weight * (torch::arange(4) * factor + offset)).sum().backward();
  }

  at::Tensor weight = torch::zeros({4}, torch::dtype(torch::kFloat64).requires_grad(true));
  torch::optim::SGD inner{{weight}, 1.0};
  DistributedOptimizer optimizer{inner, {{"weight", weight}}};
};

at::Tensor ramp(double factor, double offset = 0) {
  return torch::arange(4, torch::kFloat64) * factor + offset;
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
