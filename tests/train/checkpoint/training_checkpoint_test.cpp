// What resumes from a checkpoint, beside the values that resume_matrix and random training programs
// compare.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "kolo/torch/checkpoint.hpp"
#include "kolo/torch/grad_scaler.hpp"
#include "support/mpi/variants.hpp"
#include "train/training_checkpoints.hpp"

namespace kolo::test::training_checkpoint_test {

const AlsoIn also_in({"alone", "uneven"});

TEST_F(CheckpointTest, AnOwnOptimizer_IsSteppedOnceAStep_AndNotByLoad) {
  for (const Shard mode : all_modes()) {
    const auto steps_of = [](const Training& training) {
      return static_cast<const CountingOptimizer&>(*training.inner).steps;
    };
    Training before(cases().back(), mode);
    before.run(0, 4);
    EXPECT_EQ(steps_of(before), 4) << name_of(mode);
    before.optimizer->save(folder_);
    Training after(cases().back(), mode, 99);
    after.optimizer->load(folder_);
    EXPECT_EQ(steps_of(after), 0) << name_of(mode);
    after.run(4, 7);
    EXPECT_EQ(steps_of(after), 3) << name_of(mode);
  }
}

TEST_F(CheckpointTest, AdagradsState_IsNewWhereTheCheckpointHasNone) {
  const auto make = [] { return torch::ones({40}, torch::kFloat64).requires_grad_(); };
  const auto make_inner = [](const Parameters& parameters) {
    return Adagrad(parameters, AdagradOptions(0.5).initial_accumulator_value(3.0).eps(0.0));
  };
  for (const Shard mode : all_modes()) {
    const at::Tensor a = make();
    const at::Tensor b = make();
    Adagrad of_a = make_inner({a});
    DistributedOptimizer before(of_a, {{"a", a}, {"b", b}}, with(mode));
    a.sum().backward();
    before.step();  // a's sum is 3 + 1
    before.save(folder_);
    const at::Tensor c = make();
    const at::Tensor d = make();
    Adagrad of_both = make_inner({c, d});
    DistributedOptimizer after(of_both, {{"a", c}, {"b", d}}, with(mode));
    after.load(folder_);
    (c + d).sum().backward();
    after.step();
    const at::Tensor expected = make().detach();
    EXPECT_TRUE(torch::allclose(c, expected - 0.25 - 0.5 / std::sqrt(5.0))) << c;
    EXPECT_TRUE(torch::allclose(d, expected - 0.25)) << d;
  }
}

TEST_F(CheckpointTest, StateOfItsOwnShape_IsNoElementOfAShard) {
  // A shard has at least 64 bytes: the second rank's has one element.
  const auto make = [] { return torch::ones({17}).requires_grad_(); };
  const auto train = [&](const at::Tensor& weight, DistributedOptimizer& optimizer, int steps) {
    for (int step = 0; step < steps; ++step) {
      optimizer.zero_grad();
      (weight * torch::arange(17)).sum().backward();
      optimizer.step();
    }
  };
  for (const Shard mode : sharded_modes()) {
    const at::Tensor weight = make();
    CountingOptimizer inner({weight});
    DistributedOptimizer optimizer(inner, {{"weight", weight}}, with(mode));
    train(weight, optimizer, 2);
    optimizer.save(folder_);
    train(weight, optimizer, 2);
    for (const Shard loaded : all_modes()) {
      const at::Tensor other = make();
      CountingOptimizer other_inner({other});
      DistributedOptimizer after(other_inner, {{"weight", other}}, with(loaded));
      after.load(folder_);
      train(other, after, 2);
      EXPECT_TRUE(torch::equal(other, weight)) << name_of(mode) << ", " << name_of(loaded);
    }
  }
}

TEST_F(CheckpointTest, OptionsScalerGeneratorsAndExtras_AreRestored) {
  const OptimizerCase adamw = cases()[2];
  Training before(adamw, Shard::Optimizer);
  before.run(0, 2);
  before.inner->param_groups()[0].options().set_lr(0.125);
  GradScaler scaler;
  scaler.set_state({.scale = 512.0,
                    .growth_factor = 3.0,
                    .backoff_factor = 0.25,
                    .growth_interval = 7,
                    .growth_tracker = 5});
  torch::manual_seed(static_cast<std::uint64_t>(40 + runtime_.rank()));
  before.optimizer->save(folder_, {.scaler = &scaler, .extras = {{"epoch", "3"}, {"é", "\n\""}}});
  const at::Tensor random = torch::rand({5});

  Training after(adamw, Shard::Gradients, 99);
  GradScaler other;
  const Loaded loaded = after.optimizer->load(folder_, {.scaler = &other});
  EXPECT_EQ(loaded.extras, (std::map<std::string, std::string>{{"epoch", "3"}, {"é", "\n\""}}));
  EXPECT_EQ(loaded.steps, 2);
  EXPECT_EQ(loaded.path.parent_path(), folder_);
  EXPECT_EQ(after.inner->param_groups()[0].options().get_lr(), 0.125);
  EXPECT_EQ(after.optimizer->param_groups()[0].options().get_lr(), 0.125);
  EXPECT_EQ(other.state(), scaler.state());
  EXPECT_TRUE(torch::equal(torch::rand({5}), random));
  EXPECT_EQ(after.net->passes[0].item<std::int64_t>(), 2);
}

TEST_F(CheckpointTest, AllRanksAreToldWhetherThereIsOne) {
  // Below the folder of all ranks, what only the last one sees.
  const auto on_last = [&](const char* name) {
    return folder_ / (rank() == size() - 1 ? name : "nothing");
  };
  EXPECT_FALSE(has_checkpoint(folder_ / "nothing"));
  EXPECT_FALSE(has_checkpoint(folder_));
  Training training(cases()[0], Shard::Optimizer);
  training.optimizer->save(folder_ / "all");
  EXPECT_TRUE(has_checkpoint(folder_ / "all"));
  EXPECT_TRUE(has_checkpoint(folder_ / "all" / "checkpoint-00000001"));
  EXPECT_TRUE(has_checkpoint(on_last("all")));
  training.optimizer->save_full_state(folder_ / "state.safetensors");
  EXPECT_TRUE(has_checkpoint(on_last("state.safetensors")));
}

TEST_F(CheckpointTest, OldCheckpoints_AreRemoved) {
  Training training(cases()[0], Shard::Optimizer);
  std::vector<at::Tensor> saved;
  const auto save = [&](int keep_last) {
    const int step = static_cast<int>(saved.size());
    training.run(step, step + 1);
    saved.push_back(flat_of(*training.net).clone());
    training.optimizer->save(folder_, {.keep_last = keep_last});
  };
  /// Expects exactly these checkpoints, each with the values that were saved under its number.
  const auto expect_left = [&](const std::vector<int>& numbers) {
    barrier();
    std::set<std::string> expected{".lock"};
    for (const int number : numbers) expected.insert("checkpoint-0000000" + std::to_string(number));
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_)) {
      names.insert(entry.path().filename().string());
    }
    EXPECT_EQ(names, expected);
    barrier();
    for (const int number : numbers) {
      Training other(cases()[0], Shard::Optimizer, 99);
      const Loaded loaded =
          other.optimizer->load(folder_ / ("checkpoint-0000000" + std::to_string(number)));
      EXPECT_EQ(loaded.steps, number);
      EXPECT_TRUE(torch::equal(flat_of(*other.net), saved[static_cast<std::size_t>(number) - 1]));
    }
  };
  for (int i = 0; i < 3; ++i) save(2);
  expect_left({2, 3});
  save(1);
  expect_left({4});
}

}  // namespace kolo::test::training_checkpoint_test
