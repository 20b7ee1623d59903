// PowerSGD's state, and its combination with other features.
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "extras/power_sgd/power_sgd_training.hpp"
#include "kolo/collectives.hpp"
#include "train/small_training.hpp"

namespace kolo::test::power_sgd_test {

TEST_F(PowerSgdTest, OverflowOfOneRank_SkipsTheStepAndLeavesStateAsItWas) {
  const PowerSgdOptions options{.start_step = 0};
  const Shape shape{12, 9};
  const auto train = [&](float damage) {
    Training training({shape}, &options);
    GradScaler scaler({.init_scale = 1.0});
    for (int step = 0; step < 5; ++step) {
      at::Tensor own = noise(step, rank(), shape);
      if (step == 2 && damage != 0) {
        at::Tensor bad = own.clone();
        if (is_last()) bad[3][4] = damage;
        training.backward({bad}, &scaler);
        EXPECT_FALSE(scaler.step(training.optimizer));
        if (size() > 1) {
          EXPECT_TRUE(training.parameters[0].grad().isnan().all().item<bool>());
        }
        scaler.update(1.0);
      }
      training.backward({own}, &scaler);
      EXPECT_TRUE(scaler.step(training.optimizer));
      scaler.update(1.0);
    }
    return training.parameters[0].detach();
  };
  const at::Tensor undamaged = train(0);
  expect_equal(train(std::numeric_limits<float>::infinity()), undamaged);
  expect_equal(train(std::numeric_limits<float>::quiet_NaN()), undamaged);
}

TEST_F(PowerSgdTest, DroppedGradients_LeaveResidualsAsTheyWere) {
  const PowerSgdOptions options{.start_step = 0, .warm_start = false};
  const Shape shape{12, 9};
  const auto train = [&](bool drops) {
    Training training({shape}, &options);
    for (int step = 0; step < 4; ++step) {
      if (drops && step > 0) training.backward({noise(20 + step, rank(), shape)});
      training.step({noise(step, rank(), shape)});  // begins with zero_grad()
    }
    return training.parameters[0].detach();
  };
  expect_equal(train(true), train(false));
}

TEST_F(PowerSgdTest, ResidualsFollowTheScale) {
  const PowerSgdOptions options{.start_step = 0};
  const Shape shape{12, 9};
  const auto train = [&](double growth) {
    Training training({shape}, &options);
    GradScaler scaler({.init_scale = 1.0, .growth_factor = growth, .growth_interval = 1});
    for (int step = 0; step < 5; ++step) {
      training.backward({noise(step, rank(), shape)}, &scaler);
      EXPECT_TRUE(scaler.step(training.optimizer));
      scaler.update();
    }
    return training.parameters[0].detach();
  };
  expect_equal(train(16.0), train(2.0));
}

TEST_F(PowerSgdTest, Checkpoints_ResumeExactly) {
  CommonFolder folder;
  const std::vector<Shape> shapes{{12, 9}, {7}, {9, 14}};
  const PowerSgdOptions options{.start_step = 1};
  const auto train = [&](Training& training, int first, int last) {
    for (int step = first; step < last; ++step) {
      Tensors own;
      for (const Shape& shape : shapes) own.push_back(noise(step, rank(), shape));
      training.step(own);
    }
  };
  Training before(shapes, &options);
  train(before, 0, 3);
  before.optimizer.save(folder.path());
  train(before, 3, 6);
  Training after(shapes, &options);
  EXPECT_EQ(after.optimizer.load(folder.path()).steps, 3);
  train(after, 3, 6);
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    expect_equal(after.parameters[i].detach(), before.parameters[i].detach());
  }
  // Qs with another number of columns are not used; a checkpoint without residuals loads zeros.
  const PowerSgdOptions wider{.rank = 2, .start_step = 1};
  Training other(shapes, &wider);
  other.optimizer.load(folder.path());
  train(other, 3, 5);
  for (const at::Tensor& parameter : other.parameters) expect_equal_on_all_ranks(parameter);
  Training plain(shapes, nullptr);
  plain.optimizer.save(folder.path());
  other.optimizer.load(folder.path());
  train(other, 0, 1);
  expect_near(other.parameters[0].detach(), -mean([&](int of) { return noise(0, of, shapes[0]); }),
              1e-5);
}

TEST_F(PowerSgdTest, Residual_IsAppliedOnFewerRanks) {
  CommonFolder folder;
  const Shape shape{12, 9};
  const PowerSgdOptions options{.start_step = 0};
  Training before({shape}, &options);
  for (int step = 0; step < 3; ++step) before.step({noise(step, rank(), shape)});
  before.optimizer.save(folder.path());
  ProcessSet& first = runtime_.add_process_set({0});
  if (first.included()) {
    PowerSgdOptions alone = options;
    alone.process_set = &first;
    Training after({shape}, &alone, at::kFloat, {.process_set = &first});
    after.optimizer.load(folder.path());
    const at::Tensor rest = after.step({at::zeros(shape)})[0];
    expect_near(before.sums[0] + rest, mean([&](int of) {
                  return noise(0, of, shape) + noise(1, of, shape) + noise(2, of, shape);
                }),
                1e-5);
    expect_near(after.step({at::zeros(shape)})[0], at::zeros(shape), 1e-30);
  }
  barrier();
}

TEST_F(PowerSgdTest, GradientsThatNoRankHas_LeaveStateAsItWas) {
  const PowerSgdOptions options{.start_step = 0};
  const std::vector<Shape> shapes{{12, 9}, {9, 12}};
  const auto train = [&](bool pauses) {
    Training training(shapes, &options);
    for (int step = 0; step < 4; ++step) {
      if (pauses && step == 2) {
        EXPECT_FALSE(training.step({{}, at::zeros(shapes[1])})[0].defined());
      }
      // Only one rank has a gradient; the others count as zeros.
      const at::Tensor first =
          step == 3 && !is_last() ? at::Tensor() : noise(step, rank(), shapes[0]);
      training.step({first, at::zeros(shapes[1])});
    }
    return training.parameters[0].detach();
  };
  expect_equal(train(true), train(false));
}

TEST_F(PowerSgdTest, ProcessSet_IsAveragedByItself) {
  std::vector<int> members;
  for (int member = size() / 2; member < size(); ++member) members.push_back(member);
  ProcessSet& set = runtime_.add_process_set(members);
  if (!set.included()) return;
  const PowerSgdOptions options{.start_step = 0, .process_set = &set};
  Training training({{16, 16}}, &options, at::kFloat, {.process_set = &set});
  const at::Tensor ones = at::ones({16, 16});
  const double expected = (size() / 2 + size() - 1) / 2.0 + 1;
  expect_near(training.step({ones * (rank() + 1.0)})[0], ones.to(at::kDouble) * expected, 1e-5);
}

TEST_F(PowerSgdTest, AnotherProcessSet_IsAnError) {
  ProcessSet& set = runtime_.add_process_set(runtime_.world().ranks());
  const PowerSgdOptions options{.start_step = 0, .process_set = &set};
  Training training({{16, 16}}, &options);
  expect_refused([&] { training.backward({at::ones({16, 16})}); },
                 "PowerSgd: it was made for process set " + set.name());
}

TEST_F(PowerSgdTest, RankThatHasJoined_CountsAsZeros) {
  const PowerSgdOptions options{.start_step = 1};
  Training training({{16, 16}}, &options);
  const at::Tensor ones = at::ones({16, 16});
  const int steps = is_last() ? 2 : 4;
  for (int step = 0; step < steps; ++step) {
    const double present = step < 2 ? size() : size() - 1;
    const at::Tensor reduced = training.step({ones})[0];
    EXPECT_NEAR(reduced[0][0].item<double>(), present / size(), 1e-5) << step;
  }
  training.optimizer.join();
  expect_near(training.step({ones})[0], ones.to(at::kDouble), 1e-5);
  expect_equal_on_all_ranks(training.parameters[0]);
}

TEST_F(PowerSgdTest, WrongOptions_AreErrorsOnAllRanks) {
  const auto expect_text = [&](const PowerSgdOptions& wrong, const std::string& text) {
    expect_refused([&] { PowerSgd(is_last() ? wrong : PowerSgdOptions{}); }, text);
  };
  expect_text({.rank = 0}, "rank is 0");
  expect_text({.start_step = -1}, "start_step is -1");
  expect_text({.min_compression_rate = 0.5}, "min_compression_rate is 0.5");
  expect_text({.min_compression_rate = std::numeric_limits<double>::quiet_NaN()},
              "min_compression_rate is nan");
  if (size() == 1) GTEST_SKIP() << "the rest: one rank differs from nobody";
  const auto expect_mismatch = [&](const PowerSgdOptions& other, const std::string& text) {
    expect_refused<MismatchError>([&] { PowerSgd(is_last() ? other : PowerSgdOptions{}); }, text);
  };
  expect_mismatch({.rank = 2}, "rank is 1 on rank 0");
  expect_mismatch({.start_step = 7}, "start_step is 1000 on rank 0");
  expect_mismatch({.min_compression_rate = 3}, "min_compression_rate is 2");
  expect_mismatch({.error_feedback = false}, "error_feedback is true on rank 0");
  expect_mismatch({.warm_start = false}, "warm_start is true on rank 0");
  expect_mismatch({.seed = 7}, "seed is 0 on rank 0");
}

TEST_F(PowerSgdTest, ShardedOptimizer_RefusesIt) {
  for (const Shard shard : {Shard::Optimizer, Shard::Gradients, Shard::Full}) {
    Training training({{16, 16}}, nullptr, at::kFloat, {.shard = shard});
    PowerSgd power_sgd;
    EXPECT_THROW(training.optimizer.register_bucket_hook(power_sgd.hook()), InvalidArgument);
  }
}

}  // namespace kolo::test::power_sgd_test
