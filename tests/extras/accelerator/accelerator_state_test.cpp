// An Accelerator that resumes from a checkpoint.
#include <limits>
#include <map>
#include <set>
#include <string>

#include "extras/accelerator/accelerator_fixture.hpp"
#include "support/mpi/agree.hpp"

namespace kolo::test::accelerator_test {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kSamples = 29;
constexpr std::int64_t kEpochs = 2;

/// Trains a multi-layer perceptron on the ranks of a set: eight passes of four samples per epoch,
/// three passes per step. `noisy` means float16, and losses multiplied by a random number.
struct Training {
  Training(ProcessSet& set, Shard shard, bool noisy)
      : is_noisy(noisy),
        accelerator({.shard = shard,
                     .gradient_accumulation_steps = 3,
                     .mixed_precision = noisy ? Precision::Float16 : Precision::None,
                     .optimizer = {.process_set = &set, .bucket_bytes = 500},
                     .scaler = {.init_scale = 8.0, .growth_interval = 2}}),
        batches(accelerator.prepare(
            *model, adamw, numbers(kSamples), {.batch_size = 4, .seed = 5, .workers = 1},
            [](std::int64_t step) { return 1.0 / (2.0 + static_cast<double>(step)); })) {}

  /// Runs `after` after each pass, with the number of passes so far; stops if it returns true.
  template <class After>
  void train(After after) {
    int passes = 0;
    for (const std::int64_t epoch : accelerator.epochs(kEpochs)) {
      for (auto& batch : batches) {
        accelerator.backward([&] {
          const at::Tensor noise = is_noisy ? torch::rand({}) : torch::ones({});
          return loss_of(model, batch.data) * noise;
        });
        accelerator.clip_grad_norm_(0.5);
        accelerator.step();
        seen.push_back(accelerator.gather_for_metrics(batch.target));
        if (after(++passes)) return;
      }
      ended.push_back(epoch);
    }
  }
  void train() {
    train([](int) { return false; });
  }
  /// All samples from pass `begin` on, in order.
  at::Tensor ids(std::size_t begin = 0) const {
    return torch::cat(
        std::vector<at::Tensor>(seen.begin() + static_cast<std::ptrdiff_t>(begin), seen.end()));
  }

  bool is_noisy;
  torch::nn::Sequential model = make_mlp(torch::kFloat32);
  torch::optim::AdamW adamw{model->parameters(), torch::optim::AdamWOptions(1e-2).eps(1e-4)};
  Accelerator accelerator;
  NumberBatches batches;
  std::vector<at::Tensor> seen;
  std::vector<std::int64_t> ended;
};

/// The first pass that must be repeated after a run was saved after `passes` passes. Steps have
/// three passes, except the last one of an epoch's eight passes, which has two.
std::size_t first_pass_after(int passes) {
  const int in_epoch = passes % 8;
  return static_cast<std::size_t>(passes - (in_epoch % 3));
}

class RestartTest : public AcceleratorTest, public testing::WithParamInterface<Shard> {};
INSTANTIATE_TEST_SUITE_P(Modes, RestartTest, testing::ValuesIn(all_modes()),
                         [](const auto& mode) { return std::string(name_of(mode.param)); });

/// Where each mode's run is interrupted: in the middle of a step, between steps, after the last
/// step of an epoch, in the second epoch.
int interruption(Shard shard) {
  switch (shard) {
    case Shard::None: return 4;
    case Shard::Optimizer: return 6;
    case Shard::Gradients: return 8;
    case Shard::Full: return 11;
  }
  return 0;
}

TEST_P(RestartTest, SameRanks_SeeTheSameSamplesAndEndWithTheSameBits) {
  const int saved_after = interruption(GetParam());
  Training whole(runtime_.world(), GetParam(), /*noisy=*/true);
  torch::manual_seed(static_cast<std::uint64_t>(11 + rank()));
  EXPECT_FALSE(whole.accelerator.load_state(folder()));
  whole.train([&](int passes) {
    if (passes == saved_after) {
      whole.accelerator.save_state(folder(), {.extras = {{"passes", std::to_string(passes)}}});
    }
    return false;
  });
  Training resumed(runtime_.world(), GetParam(), /*noisy=*/true);
  const std::optional<Loaded> loaded = resumed.accelerator.load_state(folder());
  ASSERT_ON_ALL_RANKS(loaded);
  EXPECT_EQ(loaded->extras,
            (std::map<std::string, std::string>{{"passes", std::to_string(saved_after)}}));
  resumed.train();
  // In the middle of a step, the noise of its first passes is drawn again.
  const std::size_t first = first_pass_after(saved_after);
  expect_equal(resumed.ids(), whole.ids(first));
  if (first == static_cast<std::size_t>(saved_after)) {
    EXPECT_TRUE(torch::equal(flat(*resumed.model), flat(*whole.model)));
  }
  EXPECT_EQ(resumed.accelerator.steps(), 6);
  EXPECT_EQ(resumed.adamw.param_groups()[0].options().get_lr(),
            whole.adamw.param_groups()[0].options().get_lr());
}

TEST_P(RestartTest, OtherRanks_SeeTheSameSamplesAndEndAlike) {
  Training whole(runtime_.world(), GetParam(), /*noisy=*/false);
  whole.train([&](int passes) {
    if (passes == 6) whole.accelerator.save_state(folder());
    return false;
  });
  const at::Tensor expected = flat(*whole.model);  // all ranks may have to gather it
  for (const int ranks : std::set<int>{1, size() - 1}) {
    if (ranks == 0 || ranks == size()) continue;
    ProcessSet& set = sets_.first(ranks);
    if (!set.included()) continue;
    Training resumed(set, ranks == 1 ? Shard::None : GetParam(), /*noisy=*/false);
    EXPECT_TRUE(resumed.accelerator.load_state(folder()));
    EXPECT_EQ(resumed.accelerator.epoch(), 0);
    resumed.train();
    expect_equal(resumed.ids(), whole.ids(6));
    EXPECT_LT(largest_difference(flat(*resumed.model), expected), 1e-5) << ranks;
  }
}

class AcceleratorStateTest : public AcceleratorTest {};

/// Code after an epoch's loop runs after a restart only if it has not run before.
TEST_F(AcceleratorStateTest, EndedEpoch_IsNotRepeated) {
  Training run(runtime_.world(), Shard::None, /*noisy=*/false);
  run.train([&](int passes) {
    if (passes == 8) run.accelerator.save_state(folder() / "inside");
    if (passes == 9) run.accelerator.save_state(folder() / "next");
    return false;
  });
  EXPECT_EQ(run.ended, (std::vector<std::int64_t>{0, 1}));
  run.accelerator.save_state(folder() / "end");
  const auto resume = [&](const char* name) {
    Training resumed(runtime_.world(), Shard::None, /*noisy=*/false);
    EXPECT_TRUE(resumed.accelerator.load_state(folder() / name));
    resumed.train();
    EXPECT_TRUE(torch::equal(flat(*resumed.model), flat(*run.model))) << name;
    return std::pair(resumed.ended, resumed.seen.size());
  };
  EXPECT_EQ(resume("inside"), std::pair(std::vector<std::int64_t>{0, 1}, std::size_t{8}));
  EXPECT_EQ(resume("next"), std::pair(std::vector<std::int64_t>{1}, std::size_t{8}));
  EXPECT_EQ(resume("end"), std::pair(std::vector<std::int64_t>{}, std::size_t{0}));
}

// --- LibTorch's schedulers ---

template <class Scheduler>
struct Scheduled {
  template <class... Args>
  explicit Scheduled(Args... args) : scheduler(sgd, args...) {
    accelerator.prepare(weights, sgd, scheduler);
  }
  void step() {
    accelerator.backward(weights.mean_weight(torch::arange(4)));
    accelerator.step();
  }
  double rate() const { return sgd.param_groups()[0].options().get_lr(); }

  Weights weights{4};
  torch::optim::SGD sgd{weights.parameters(), torch::optim::SGDOptions(1.0)};
  Scheduler scheduler;
  Accelerator accelerator;
};

TEST_F(AcceleratorStateTest, StepLR_GoesOnWhereItWas) {
  using Scheduling = Scheduled<torch::optim::StepLR>;
  Scheduling whole(3U, 0.5);
  for (int step = 0; step < 5; ++step) whole.step();
  whole.accelerator.save_state(folder());
  Scheduling resumed(3U, 0.5);
  EXPECT_TRUE(resumed.accelerator.load_state(folder()));
  for (int step = 5; step < 14; ++step) {
    EXPECT_EQ(resumed.rate(), whole.rate()) << step;
    whole.step();
    resumed.step();
  }
  EXPECT_EQ(resumed.rate(), 0.0625);
  EXPECT_TRUE(torch::equal(resumed.weights.value(), whole.weights.value()));
  expect_refused([&] { resumed.accelerator.load_state(folder()); }, "cannot go back");
}

TEST_F(AcceleratorStateTest, Plateau_GoesOnWhereItWasWithTheFirstRanksMetric) {
  using Scheduling = Scheduled<torch::optim::ReduceLROnPlateauScheduler>;
  using Mode = torch::optim::ReduceLROnPlateauScheduler;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> metrics{1.0F, 2.0F, nan, 0.5F, 3.0F, 3.0F, 3.0F, 3.0F, 0.25F};
  Scheduling whole(Mode::min, 0.5F, /*patience=*/1);
  std::vector<double> rates;
  const auto report = [&](Scheduling& training, std::size_t i) {
    training.accelerator.step_schedule(rank() == 0 ? metrics[i] : 7.0F);
    training.step();
    return training.rate();
  };
  for (std::size_t i = 0; i < metrics.size(); ++i) {
    if (i == 5) whole.accelerator.save_state(folder());
    rates.push_back(report(whole, i));
  }
  EXPECT_EQ(rates[2], 0.5);
  EXPECT_EQ(rates[5], 0.25);
  EXPECT_EQ(rates.back(), 0.125);
  Scheduling resumed(Mode::min, 0.5F, 1);
  EXPECT_TRUE(resumed.accelerator.load_state(folder()));
  for (std::size_t i = 5; i < metrics.size(); ++i) EXPECT_EQ(report(resumed, i), rates[i]) << i;
  EXPECT_TRUE(torch::equal(resumed.weights.value(), whole.weights.value()));
}

}  // namespace
}  // namespace kolo::test::accelerator_test
