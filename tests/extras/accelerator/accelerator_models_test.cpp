// Several Accelerators at a time, and habits of single-process programs that are ported.
#include <cstdio>
#include <functional>
#include <iostream>
#include <memory>

#include "extras/accelerator/accelerator_fixture.hpp"

namespace kolo::test::accelerator_test {

using torch::optim::SGD;
using torch::optim::SGDOptions;

/// Two models as in a GAN: each batch trains both for one step. The second loss leaves unused
/// gradients in the first model.
struct Pair {
  explicit Pair(std::size_t samples) : judge(samples, 1.0), forger(samples, 0.5) {}

  at::Tensor verdict(const at::Tensor& samples) const {
    const at::Tensor forged = forger.weights.index_select(0, samples).detach();
    return (judge.weights.index_select(0, samples) * (1 + forged)).mean();
  }
  at::Tensor disguise(const at::Tensor& samples) const {
    return (judge.weights * forger.weights).index_select(0, samples).mean();
  }
  at::Tensor value() const { return torch::cat({judge.value(), forger.value()}); }

  Weights judge, forger;
};

at::Tensor pair_alone(std::int64_t samples, std::int64_t batch_size) {
  Pair pair(static_cast<std::size_t>(samples));
  SGD judge_sgd(pair.judge.parameters(), SGDOptions(1.0));
  SGD forger_sgd(pair.forger.parameters(), SGDOptions(1.0));
  for (int epoch = 0; epoch < 2; ++epoch) {
    for (const at::Tensor& batch : torch::arange(samples).split(batch_size)) {
      judge_sgd.zero_grad();
      pair.verdict(batch).backward();
      judge_sgd.step();
      forger_sgd.zero_grad();
      pair.disguise(batch).backward();
      forger_sgd.step();
    }
  }
  return pair.value();
}

/// @param is_local  whether the unused gradients stay on their rank
at::Tensor pair_accelerated(Shard shard, bool is_local) {
  Pair pair(23);
  SGD judge_sgd(pair.judge.parameters(), SGDOptions(1.0));
  SGD forger_sgd(pair.forger.parameters(), SGDOptions(1.0));
  Accelerator accelerator({.shard = shard}), forger_accelerator({.shard = shard});
  auto batches =
      accelerator.prepare(pair.judge, judge_sgd, numbers(23), {.batch_size = 5, .shuffle = false});
  forger_accelerator.prepare(pair.forger, forger_sgd, accelerator);
  for (int epoch = 0; epoch < 2; ++epoch) {
    for (auto& batch : batches) {
      accelerator.backward(pair.verdict(batch.target));
      accelerator.step();
      const auto disguise = [&] { forger_accelerator.backward(pair.disguise(batch.target)); };
      if (is_local) {
        const auto guard = accelerator.optimizer().no_sync();
        disguise();
      } else {
        disguise();
      }
      forger_accelerator.step();
    }
  }
  EXPECT_EQ(forger_accelerator.steps(), 10);
  return pair.value();
}

TEST_F(AcceleratorTest, TwoModels_ShareTheBatchesOfOne) {
  const at::Tensor alone = pair_alone(23, 5);
  for (const Shard shard : all_modes()) {
    for (const bool is_local : {false, true}) {
      EXPECT_LT(largest_difference(pair_accelerated(shard, is_local), alone), 1e-5)
          << name_of(shard) << is_local;
    }
  }
}

/// backward() takes the sum over a batch's samples and their number. In the last batch, of 2
/// samples, ranks without any get the first sample, which must not count.
TEST_F(AcceleratorTest, TwoModels_MayCountSamples) {
  Weights model(10), other(10);
  SGD sgd(model.parameters(), SGDOptions(1.0)), other_sgd(other.parameters(), SGDOptions(1.0));
  Accelerator accelerator, other_accelerator;
  auto batches = accelerator.prepare(model, sgd, numbers(10), {.batch_size = 4, .shuffle = false});
  other_accelerator.prepare(other, other_sgd, accelerator);
  for (auto& batch : batches) {
    other_accelerator.backward(other.weights.index_select(0, batch.target).sum(),
                               batch.target.size(0));
    other_accelerator.step();
    accelerator.backward(model.mean_weight(batch.target));
    accelerator.step();
  }
  const at::Tensor expected = -torch::cat({torch::full({8}, 0.25), torch::full({2}, 0.5)});
  EXPECT_LT(largest_difference(other.value(), expected), 1e-6);
  EXPECT_LT(largest_difference(model.value(), expected), 1e-6);
}

TEST_F(AcceleratorTest, SharedBatches_AreOfOnePassEach) {
  Weights model(8), other(8);
  SGD sgd(model.parameters(), SGDOptions(1.0)), other_sgd(other.parameters(), SGDOptions(1.0));
  Accelerator accelerator, unprepared, accumulating({.gradient_accumulation_steps = 2});
  expect_refused([&] { accelerator.prepare(other, other_sgd, unprepared); },
                 "prepare() of another Accelerator before prepare()");
  accumulating.prepare(model, sgd, numbers(8), {.batch_size = 4});
  expect_refused([&] { accelerator.prepare(other, other_sgd, accumulating); },
                 "gradient_accumulation_steps is not 1");
}

TEST_F(AcceleratorTest, Optimizer_MayBelongToTheAccelerator) {
  const auto train = [](PreparedOptimizer optimizer, Weights& model) {
    Accelerator accelerator;
    auto batches = accelerator.prepare(model, std::move(optimizer), numbers(8),
                                       {.batch_size = 4, .shuffle = false});
    for (auto& batch : batches) {
      accelerator.backward(model.mean_weight(batch.target));
      accelerator.step();
    }
    return model.value();
  };
  Weights model(8), pointed_to(8);
  expect_equal(train(SGD(model.parameters(), SGDOptions(1.0)), model), torch::full({8}, -0.25));
  auto sgd = std::make_unique<SGD>(pointed_to.parameters(), SGDOptions(1.0));
  expect_equal(train(std::move(sgd), pointed_to), torch::full({8}, -0.25));
  Accelerator accelerator;
  expect_refused([&] { accelerator.prepare(model, std::unique_ptr<SGD>()); }, "a null pointer");
}

TEST_F(AcceleratorTest, SecondBackward_IsRefusedBeforeItChangesGradients) {
  for (const int passes : {1, 2}) {
    Weights model(8);
    SGD sgd(model.parameters(), SGDOptions(1.0));
    Accelerator accelerator({.gradient_accumulation_steps = passes});
    auto batches = accelerator.prepare(model, sgd, numbers(8), {.batch_size = 4});
    for (auto& batch : batches) {
      accelerator.backward(model.mean_weight(batch.target));
      expect_refused([&] { accelerator.backward(model.mean_weight(batch.target)); },
                     "a second backward() before step()");
      expect_refused([&] { accelerator.backward(model.mean_weight(batch.target), 4); },
                     "a second backward() before step()");
      accelerator.step();
    }
    EXPECT_LT(largest_difference(model.value(), torch::full({8}, -0.25 / passes)), 1e-6);
  }
}

/// Two passes a step; calls `drop` before each of them.
void accumulate(Shard shard, torch::nn::Module& model,
                const std::function<at::Tensor(const at::Tensor&)>& loss,
                const std::function<void()>& drop) {
  SGD sgd(model.parameters(), SGDOptions(1.0));
  Accelerator accelerator({.shard = shard, .gradient_accumulation_steps = 2});
  auto batches = accelerator.prepare(model, sgd, numbers(8), {.batch_size = 4});
  for (auto& batch : batches) {
    drop();
    accelerator.backward(loss(batch.target));
    accelerator.step();
  }
}

TEST_F(AcceleratorTest, ZeroGradOfThePassesBefore_IsFound) {
  for (const Shard shard : all_modes()) {
    for (const bool set_to_none : {true, false}) {
      Weights model(8);
      const auto loss = [&](const at::Tensor& target) { return model.mean_weight(target); };
      expect_refused([&] { accumulate(shard, model, loss, [&] { model.zero_grad(set_to_none); }); },
                     "Do not call zero_grad() in the loop");
    }
  }
}

TEST_F(AcceleratorTest, ZeroGradOfAPartOfTheModel_IsFound) {
  struct Parts : torch::nn::Module {
    std::shared_ptr<Weights> first = register_module("first", std::make_shared<Weights>(8));
    std::shared_ptr<Weights> second = register_module("second", std::make_shared<Weights>(8));
  };
  for (const Shard shard : all_modes()) {
    Parts model;
    const auto loss = [&](const at::Tensor& target) {
      return model.first->mean_weight(target) + model.second->mean_weight(target);
    };
    expect_refused([&] { accumulate(shard, model, loss, [&] { model.second->zero_grad(); }); },
                   "Do not call zero_grad() in the loop");
  }
}

/// As if a program scaled them: not every write to gradients drops them.
TEST_F(AcceleratorTest, GradientsOfThePassesBefore_MayBeChanged) {
  Weights model(8);
  SGD sgd(model.parameters(), SGDOptions(1.0));
  Accelerator accelerator({.gradient_accumulation_steps = 2});
  auto batches = accelerator.prepare(model, sgd, numbers(8), {.batch_size = 4, .shuffle = false});
  for (auto& batch : batches) {
    accelerator.backward(model.mean_weight(batch.target));
    if (accelerator.is_accumulating()) model.weights.mutable_grad().mul_(2.0);
    accelerator.step();
  }
  const at::Tensor expected = -torch::cat({torch::full({4}, 0.25), torch::full({4}, 0.125)});
  EXPECT_LT(largest_difference(model.value(), expected), 1e-6);
}

/// Without accumulation, a zero_grad() left over from the original program changes nothing.
TEST_F(AcceleratorTest, ZeroGradOfEachStep_IsAllowed) {
  for (const Shard shard : all_modes()) {
    Weights model(8);
    SGD sgd(model.parameters(), SGDOptions(1.0));
    Accelerator accelerator({.shard = shard});
    auto batches = accelerator.prepare(model, sgd, numbers(8), {.batch_size = 4, .shuffle = false});
    for (int epoch = 0; epoch < 2; ++epoch) {
      for (auto& batch : batches) {
        sgd.zero_grad();
        accelerator.backward(model.mean_weight(batch.target));
        accelerator.step();
      }
    }
    EXPECT_LT(largest_difference(model.value(), torch::full({8}, -0.5)), 1e-6) << name_of(shard);
  }
}

TEST_F(AcceleratorTest, QuietRanks_WriteNothingWhileItLives) {
  testing::internal::CaptureStdout();
  std::cout << "before, ";
  {
    auto first = std::make_unique<Accelerator>(AcceleratorOptions{.quiet_ranks = true});
    const Accelerator accelerator({.quiet_ranks = true});
    std::cout << "a stream, ";
    first.reset();
    std::printf("a function, ");
    accelerator.print("a line");
  }
  std::printf("after");
  std::fflush(stdout);
  EXPECT_EQ(testing::internal::GetCapturedStdout(),
            rank() == 0 ? "before, a stream, a function, a line\nafter" : "before, after");
}

}  // namespace kolo::test::accelerator_test
