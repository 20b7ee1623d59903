// Learning rates that an Accelerator changes once per step.
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <type_traits>

#include "extras/accelerator/accelerator_fixture.hpp"

namespace kolo::test::accelerator_test {

using torch::optim::SGD;
using torch::optim::SGDOptions;

/// The rates of steps 0, 1, 2 …, deduced from the weights.
template <class MakeSchedule>
at::Tensor rates(MakeSchedule make, std::int64_t steps) {
  const auto samples = static_cast<std::size_t>(steps * 4);
  Weights model(samples);
  SGD sgd(model.parameters(), SGDOptions(8.0));
  auto scheduler = make(sgd);
  Accelerator accelerator({.gradient_accumulation_steps = 2});
  auto batches = [&] {
    const BatchOptions options{.batch_size = 4, .shuffle = false};
    if constexpr (std::is_invocable_v<decltype(scheduler), std::int64_t>) {
      return accelerator.prepare(model, sgd, numbers(2 * samples), options, scheduler);
    } else {
      return accelerator.prepare(model, sgd, numbers(2 * samples), options, *scheduler);
    }
  }();
  for (auto& batch : batches) {
    // Both passes of step k use the four samples from 4 k on.
    const at::Tensor samples_of_step = batch.target.remainder(4) + batch.target.div(8, "floor") * 4;
    accelerator.backward(model.mean_weight(samples_of_step));
    accelerator.step();
  }
  return -4 * model.value().view({steps, 4}).mean(1);
}

TEST_F(AcceleratorTest, Factor_ChangesTheRateOncePerStep) {
  const at::Tensor got = rates(
      [](SGD&) { return [](std::int64_t step) { return 1.0 / static_cast<double>(1 + step); }; },
      5);
  EXPECT_LT(largest_difference(got, 8.0 / torch::arange(1.0, 6.0)), 1e-5);
}

TEST_F(AcceleratorTest, LibTorchScheduler_IsSteppedOncePerStep) {
  const at::Tensor got = rates(
      [](SGD& sgd) { return std::make_unique<torch::optim::StepLR>(sgd, /*step_size=*/2, 0.5); },
      6);
  // LibTorch's first step() never decays.
  EXPECT_LT(largest_difference(got, torch::tensor({8.0, 8.0, 8.0, 4.0, 4.0, 2.0})), 1e-5);
}

TEST_F(AcceleratorTest, SkippedStep_LeavesParametersAndScheduleAlone) {
  Weights model(16);
  SGD sgd(model.parameters(), SGDOptions(1.0));
  Accelerator accelerator(
      {.mixed_precision = Precision::Float16, .scaler = {.init_scale = 1024.0}});
  auto batches = accelerator.prepare(model, sgd, numbers(16), {.batch_size = 4, .shuffle = false},
                                     [](std::int64_t step) { return step == 0 ? 1.0 : 0.5; });
  const double infinity = std::numeric_limits<double>::infinity();
  int pass = 0;
  for (auto& batch : batches) {
    const bool is_bad = pass < 2;
    accelerator.backward(
        [&] { return model.mean_weight(batch.target) * (is_bad && is_last() ? infinity : 1.0); });
    accelerator.clip_grad_norm_(100.0);
    EXPECT_EQ(accelerator.step(), !is_bad) << pass;
    ++pass;
  }
  EXPECT_EQ(accelerator.steps(), 2);
  const at::Tensor expected =
      -torch::cat({torch::zeros({8}), torch::full({4}, 0.25), torch::full({4}, 0.125)});
  EXPECT_LT(largest_difference(model.value(), expected), 1e-6);
}

}  // namespace kolo::test::accelerator_test
