// Gradients that a program drops before a step uses them.
#include <string>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "support/mpi/variants.hpp"
#include "train/gradients/ramp_weight.hpp"

namespace kolo::test::dropped_gradients_test {

const AlsoIn also_in({"messages"});

/// How a program drops gradients.
enum class Dropping { ZeroGrad, ZeroGradInPlace, ByHand };

class DroppingTest : public RampWeightTest, public testing::WithParamInterface<Dropping> {
 protected:
  static void drop(RampWeight& model) {
    switch (GetParam()) {
      case Dropping::ZeroGrad: model.optimizer.zero_grad(); break;
      case Dropping::ZeroGradInPlace: model.optimizer.zero_grad(/*set_to_none=*/false); break;
      case Dropping::ByHand: model.weight.mutable_grad().reset(); break;
    }
  }
};

std::string name_of(Dropping dropping) {
  switch (dropping) {
    case Dropping::ZeroGrad: return "ZeroGrad";
    case Dropping::ZeroGradInPlace: return "ZeroGradInPlace";
    case Dropping::ByHand: return "ByHand";
  }
  return {};
}

INSTANTIATE_TEST_SUITE_P(, DroppingTest,
                         testing::Values(Dropping::ZeroGrad, Dropping::ZeroGradInPlace,
                                         Dropping::ByHand),
                         [](const auto& item) { return name_of(item.param); });

TEST_P(DroppingTest, GradientsInFlight_AreDiscarded) {
  RampWeight model;
  for (int step = 0; step < 4; ++step) {
    model.weight.detach().zero_();
    model.backward(1000.0 * rank());  // reductions are in flight
    drop(model);
    model.backward(rank() + step, 2.0);
    model.optimizer.step();
    drop(model);
    EXPECT_TRUE(torch::allclose(-model.weight, ramp(mean_rank() + step, 2.0))) << step;
  }
}

TEST_F(RampWeightTest, Optimizer_TellsWhatTheProgramHasCalled) {
  RampWeight model;
  EXPECT_FALSE(model.optimizer.has_gradients());
  EXPECT_EQ(model.optimizer.zero_grads(), 0U);
  {
    const auto alone = model.optimizer.no_sync();
    model.backward(1.0);
    EXPECT_FALSE(model.optimizer.has_gradients());
  }
  model.backward(1.0);
  EXPECT_TRUE(model.optimizer.has_gradients());
  model.optimizer.zero_grad();
  EXPECT_FALSE(model.optimizer.has_gradients());
  EXPECT_EQ(model.optimizer.zero_grads(), 1U);
  model.backward(1.0);
  model.optimizer.step();
  EXPECT_FALSE(model.optimizer.has_gradients());
  EXPECT_EQ(model.optimizer.zero_grads(), 1U);
}

TEST_P(DroppingTest, Passes_AreCountedAnew) {
  DistributedOptimizer::Options options;
  options.backward_passes_per_step = 2;
  RampWeight model(options);
  for (int step = 0; step < 3; ++step) {
    model.weight.detach().zero_();
    model.backward(1000.0);
    drop(model);
    model.backward(rank());
    model.backward(step);
    model.optimizer.step();
    drop(model);
    EXPECT_TRUE(torch::allclose(-model.weight, ramp(mean_rank() + step))) << step;
  }
}

TEST_P(DroppingTest, SynchronizedStep_NeedNotBeTaken) {
  RampWeight model;
  for (int step = 0; step < 3; ++step) {
    model.weight.detach().zero_();
    model.backward(1000.0 * rank());
    model.optimizer.synchronize();
    drop(model);
    model.backward(rank(), step);
    model.optimizer.step();
    drop(model);
    EXPECT_TRUE(torch::allclose(-model.weight, ramp(mean_rank(), step))) << step;
  }
}

}  // namespace kolo::test::dropped_gradients_test
