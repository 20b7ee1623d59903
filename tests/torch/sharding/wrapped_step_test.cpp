// A program that calls step() of the wrapped optimizer is told so, in every mode.
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "kolo/error.hpp"
#include "torch/sharding.hpp"
#include "torch/sharding/sharded_guards_fixture.hpp"

namespace kolo::test::wrapped_step_test {

/// How a program that steps the wrapped optimizer zeroes its gradients.
enum class Zeroing { ByWrapper, ByWrapped, ByModel, Never };

struct Misuse {
  Shard mode;
  Algorithm algorithm;
  Zeroing zeroing;
  int steps_before;  // valid steps
};

std::string name_of(const Misuse& misuse) {
  static const char* const kZeroings[] = {"ByWrapper", "ByWrapped", "ByModel", "Never"};
  return std::string(kolo::name_of(misuse.mode)) + "_" + name_of(misuse.algorithm) + "_" +
         kZeroings[static_cast<int>(misuse.zeroing)] + "_" + std::to_string(misuse.steps_before);
}

void PrintTo(const Misuse& misuse, std::ostream* stream) { *stream << name_of(misuse); }

std::vector<Misuse> misuses() {
  std::vector<Misuse> all;
  for (const Shard mode : all_modes()) {
    for (const Algorithm algorithm : {Algorithm::Sgd, Algorithm::Adam}) {
      for (const Zeroing zeroing :
           {Zeroing::ByWrapper, Zeroing::ByWrapped, Zeroing::ByModel, Zeroing::Never}) {
        for (const int steps : {0, 2}) all.push_back({mode, algorithm, zeroing, steps});
      }
    }
  }
  return all;
}

class WrappedStepTest : public ShardedGuardsTest, public testing::WithParamInterface<Misuse> {};

INSTANTIATE_TEST_SUITE_P(, WrappedStepTest, testing::ValuesIn(misuses()),
                         [](const auto& item) { return name_of(item.param); });

TEST_P(WrappedStepTest, StepOfTheWrappedOptimizer_IsDetected) {
  const auto [mode, algorithm, zeroing, steps_before] = GetParam();
  torch::nn::Sequential model = make_mlp(torch::kFloat32);
  const auto inner = algorithm == Algorithm::Sgd
                         ? std::make_unique<torch::optim::SGD>(model->parameters(), 0.1)
                         : make_optimizer(algorithm, model->parameters());
  DistributedOptimizer optimizer(*inner, *model, with(mode));
  train(model, optimizer, steps_before);
  optimizer.zero_grad();
  const auto misuse = [&, zeroing = zeroing] {
    for (int step = 0; step < 4; ++step) {
      if (zeroing == Zeroing::ByWrapper) optimizer.zero_grad();
      if (zeroing == Zeroing::ByWrapped) inner->zero_grad();
      if (zeroing == Zeroing::ByModel) model->zero_grad();
      backward(model, step);
      inner->step();
    }
  };
  const std::string text = text_thrown_by<c10::Error>(misuse);
  // Where parameters are gathered, the gradients of late buckets are still this rank's own: ranks
  // fail at different parameters, or since another rank has.
  if (mode == Shard::Full && gathers_on_use()) return;
  expect_contains(text, "gradient of parameter '0.weight' is being reduced");
}

}  // namespace kolo::test::wrapped_step_test
