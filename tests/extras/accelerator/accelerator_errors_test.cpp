// Misuse that an Accelerator refuses.
#include <cstddef>
#include <string>
#include <utility>

#include "extras/accelerator/accelerator_fixture.hpp"

namespace kolo::test::accelerator_test {

class AcceleratorErrorsTest : public AcceleratorTest {
 protected:
  Weights model_{12};
  torch::optim::SGD sgd_{model_.parameters(), torch::optim::SGDOptions(1.0)};
};

TEST_F(AcceleratorErrorsTest, Calls_InTheWrongOrder) {
  Accelerator accelerator;
  expect_refused([&] { accelerator.step(); }, "step() before prepare()");
  expect_refused([&] { accelerator.load_state(folder()); }, "load_state() before prepare()");
  expect_refused([&] { accelerator.batches(numbers(8), {.batch_size = 8}); },
                 "batches() before prepare()");
  auto batches = accelerator.prepare(model_, sgd_, numbers(12), {.batch_size = 6});
  expect_refused([&] { accelerator.prepare(model_, sgd_); }, "prepared a model already");
  expect_refused([&] { accelerator.backward(model_.mean_weight(torch::arange(2))); },
                 "backward() outside a loop over the training batches");
  expect_refused([&] { accelerator.step(); }, "step() outside a loop");
  expect_refused([&] { accelerator.step_schedule(1.0); },
                 "step_schedule() with the schedule 'constant'");
  Accelerator without_data;
  Weights other(3);
  torch::optim::SGD sgd(other.parameters(), torch::optim::SGDOptions(1.0));
  without_data.prepare(other, sgd, {});  // not ambiguous: means no schedule
  expect_refused([&] { without_data.epochs(3).begin(); }, "epochs() without training data");
}

TEST_F(AcceleratorErrorsTest, Options_OutOfRange) {
  const auto refuse = [&](AcceleratorOptions options, const BatchOptions& batches,
                          const std::string& text, std::size_t samples = 12) {
    Accelerator accelerator(std::move(options));
    expect_refused([&] { accelerator.prepare(model_, sgd_, numbers(samples), batches); }, text);
  };
  refuse({.gradient_accumulation_steps = 0}, {.batch_size = 4}, "gradient_accumulation_steps is 0");
  refuse({.optimizer = {.backward_passes_per_step = 2}}, {.batch_size = 4},
         "optimizer.backward_passes_per_step is 2");
  refuse({.optimizer = {.shard = Shard::None}}, {.batch_size = 4}, "optimizer.shard is given");
  refuse({.mixed_precision = Precision::Float16, .optimizer = {.local_sgd = {.period = 2}}},
         {.batch_size = 4}, "local_sgd is given with Precision::Float16");
  refuse({}, {.batch_size = 0}, "batch_size is 0");
  refuse({}, {.batch_size = 13, .drop_last = true}, "drop_last leaves no batch");
  refuse({}, {.batch_size = 4}, "the data set has 0 samples", 0);
  if (size() > 1) {
    refuse({}, {.batch_size = static_cast<std::size_t>(size() - 1)}, "less than the");
    Accelerator accelerator;
    expect_refused<MismatchError>(
        [&] {
          accelerator.prepare(model_, sgd_, numbers(12),
                              {.batch_size = 4 + static_cast<std::size_t>(rank())});
        },
        "batch_size is 4 on rank 0, and batch_size is 5 on rank 1");
  }
}

TEST_F(AcceleratorErrorsTest, SteplessPass_IsFoundAtTheEndOfTheEpoch) {
  Accelerator accelerator({.gradient_accumulation_steps = 2});
  auto batches = accelerator.prepare(model_, sgd_, numbers(12), {.batch_size = 4});
  int pass = 0;
  expect_refused(
      [&] {
        for (auto& batch : batches) {
          if (++pass == 3) continue;
          accelerator.backward(model_.mean_weight(batch.target));
          if (pass == 1) accelerator.step();
        }
      },
      "ends after 1 of the 2 passes of a step");
}

/// Otherwise the gradients of all steps would accumulate.
TEST_F(AcceleratorErrorsTest, BackwardOfLibTorch_IsFound) {
  for (const Shard shard : all_modes()) {
    Weights model(8);
    torch::optim::SGD sgd(model.parameters(), torch::optim::SGDOptions(1.0));
    Accelerator accelerator({.shard = shard});
    auto batches = accelerator.prepare(model, sgd, numbers(8), {.batch_size = 4});
    for (auto& batch : batches) {
      model.mean_weight(batch.target).backward();
      expect_refused([&] { accelerator.clip_grad_norm_(1.0); }, "clip_grad_norm_() after loss.");
      expect_refused([&] { accelerator.step(); }, "Call accelerator.backward(loss) instead");
      accelerator.optimizer().zero_grad();
      accelerator.backward(model.mean_weight(batch.target));
      accelerator.step();
    }
    EXPECT_LT(largest_difference(model.value(), torch::full({8}, -0.25)), 1e-6) << name_of(shard);
  }
}

TEST_F(AcceleratorErrorsTest, Gathering_ChecksRowsOnAllRanks) {
  Accelerator accelerator;
  auto batches = accelerator.prepare(model_, sgd_, numbers(12), {.batch_size = 12});
  for (auto& batch : batches) {
    const at::Tensor wrong = is_last() ? torch::ones({13}) : batch.target;
    expect_refused([&] { accelerator.gather_for_metrics(wrong); },
                   "on rank " + std::to_string(size() - 1) + ": the batch has");
    EXPECT_EQ(accelerator.gather_for_metrics(batch.target).size(0), 12);
  }
}

TEST_F(AcceleratorErrorsTest, State_OfAnotherProgram) {
  const auto prepare = [&](Accelerator& accelerator, std::size_t samples, Schedule schedule) {
    return accelerator.prepare(model_, sgd_, numbers(samples), {.batch_size = 4},
                               std::move(schedule));
  };
  const auto refuse = [&](const char* name, std::size_t samples, const Schedule& schedule,
                          const std::string& text) {
    Accelerator accelerator;
    prepare(accelerator, samples, schedule);
    expect_refused([&] { accelerator.load_state(folder() / name); }, text);
  };
  {
    Accelerator accelerator;
    prepare(accelerator, 12, {});
    accelerator.save_state(folder() / "own");
    accelerator.optimizer().save(folder() / "plain");
    GradScaler scaler;
    expect_refused([&] { accelerator.save_state(folder(), {.scaler = &scaler}); },
                   "SaveOptions::scaler is given");
    expect_refused(
        [&] { accelerator.save_state(folder(), {.extras = {{"kolo.accelerator", ""}}}); },
        "Choose another name");
  }
  refuse("own", 13, {}, "the number of samples is 12 in the state, and 13");
  refuse("own", 12, [](std::int64_t) { return 1.0; }, "was saved with the schedule 'constant'");
  refuse("plain", 12, {}, "save_state() has not made it");
  {
    Accelerator accelerator;
    accelerator.prepare(model_, sgd_);
    expect_refused([&] { accelerator.load_state(folder() / "own"); },
                   "it has a position in training data, unlike the program");
  }
  Weights other(13);
  torch::optim::SGD sgd(other.parameters(), torch::optim::SGDOptions(1.0));
  Accelerator accelerator;
  auto batches = accelerator.prepare(other, sgd, numbers(12), {.batch_size = 4});
  expect_refused([&] { accelerator.load_state(folder() / "own"); }, "weights");
}

}  // namespace kolo::test::accelerator_test
