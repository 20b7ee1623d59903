// Saves that go on while training does.
#include <csignal>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <sys/resource.h>
#include <thread>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "kolo/collectives.hpp"
#include "kolo/error.hpp"
#include "support/errors.hpp"
#include "support/mpi/variants.hpp"
#include "train/models.hpp"
#include "train/sharding.hpp"
#include "train/training_checkpoints.hpp"

namespace kolo::test::background_save_test {

const AlsoIn also_in({"messages", "nodes"});

constexpr std::int64_t kWidth = 9;

struct Training {
  explicit Training(Shard shard)
      : model(make_mlp(torch::kFloat64)),
        inner(make_optimizer(Algorithm::Adam, model->parameters())),
        optimizer(*inner, *model, with(shard)) {}
  void step(int number, int rank) {
    optimizer.zero_grad();
    loss_of(model, batch_rows(number, 2 * rank, 2, kWidth, torch::kFloat64)).backward();
    optimizer.step();
  }
  at::Tensor parameters() {
    at::Tensor all;
    optimizer.full_parameters([&] { all = flat(*model); });
    return all;
  }

  torch::nn::Sequential model;
  std::unique_ptr<Optimizer> inner;
  DistributedOptimizer optimizer;
};

const SaveOptions kInBackground{.in_background = true};

class BackgroundSaveTest : public training_checkpoint_test::CheckpointTest {};

TEST_F(BackgroundSaveTest, Checkpoint_HasTheValuesOfTheCall) {
  for (const Shard shard : all_modes()) {
    const auto folder = folder_ / std::string(name_of(shard));
    Training training(shard);
    EXPECT_FALSE(training.optimizer.wait_for_save());
    training.step(0, rank());
    const Saved begun = training.optimizer.save(folder, kInBackground);
    EXPECT_EQ(begun.path, "");
    for (int step = 1; step < 4; ++step) training.step(step, rank());
    const std::optional<Saved> saved = training.optimizer.wait_for_save();
    ASSERT_TRUE(saved);
    EXPECT_EQ(saved->path, folder / "checkpoint-00000001");
    EXPECT_EQ(saved->saved, begun.saved);
    EXPECT_FALSE(training.optimizer.wait_for_save());

    Training resumed(shard);
    EXPECT_EQ(resumed.optimizer.load(folder).steps, 1);
    for (int step = 1; step < 4; ++step) resumed.step(step, rank());
    EXPECT_LT(largest_difference(resumed.parameters(), training.parameters()), 1e-12)
        << name_of(shard);
  }
}

TEST_F(BackgroundSaveTest, TheNextSave_AndLoad_Wait) {
  Training training(Shard::Gradients);
  training.step(0, rank());
  training.optimizer.save(folder_, {.keep_last = 2, .in_background = true});
  training.step(1, rank());
  training.optimizer.save(folder_, {.keep_last = 2, .in_background = true});
  training.step(2, rank());
  EXPECT_EQ(training.optimizer.load(folder_).steps, 2);
  EXPECT_EQ(training.optimizer.load(folder_ / "checkpoint-00000001").steps, 1);
}

TEST_F(BackgroundSaveTest, OneThatHasEnded_LeavesTheFolderToOthers) {
  Training training(Shard::Optimizer);
  training.step(0, rank());
  training.optimizer.save(folder_, {.keep_last = 0, .in_background = true});
  while (!has_checkpoint(folder_)) std::this_thread::yield();
  Training other(Shard::None);
  EXPECT_EQ(other.optimizer.load(folder_).steps, 1) << "waits for the lock, but not for ever";
}

TEST_F(BackgroundSaveTest, TheDestructorWaits) {
  {
    Training training(Shard::Full);
    training.step(0, rank());
    training.optimizer.save(folder_, kInBackground);
  }
  EXPECT_TRUE(std::filesystem::exists(folder_ / "checkpoint-00000001" / "index.json"));
}

/// While it lives, files of this process end early.
class SmallFiles {
 public:
  explicit SmallFiles(rlim_t bytes) {
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit now{bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &now);
  }
  ~SmallFiles() { setrlimit(RLIMIT_FSIZE, &before_); }
  SmallFiles(const SmallFiles&) = delete;
  SmallFiles& operator=(const SmallFiles&) = delete;

 private:
  rlimit before_{};
};

TEST_F(BackgroundSaveTest, AnErrorOfOneRank_IsThrownByTheNextCallOnAll) {
  std::signal(SIGXFSZ, SIG_IGN);
  Training training(Shard::Optimizer);
  training.step(0, rank());
  training.optimizer.save(folder_);
  {
    std::optional<SmallFiles> limit;
    if (is_last()) limit.emplace(1024);
    training.step(1, rank());
    training.optimizer.save(folder_, kInBackground);
    const std::string text =
        text_thrown_by<BackendError>([&] { training.optimizer.save(folder_, kInBackground); });
    expect_contains(text, "rank " + std::to_string(size() - 1));
    expect_contains(text, folder_.string());
  }
  EXPECT_FALSE(training.optimizer.wait_for_save()) << "the error has been thrown";
  EXPECT_EQ(training.optimizer.load(folder_).steps, 1) << "the one before is still there";
  training.step(1, rank());
  training.optimizer.save(folder_, kInBackground);
  EXPECT_TRUE(training.optimizer.wait_for_save());
}

TEST_F(BackgroundSaveTest, RanksThatDiffer_ThrowAtOnce) {
  if (size() == 1) GTEST_SKIP() << "one rank";
  Training training(Shard::None);
  const std::string text = text_thrown_by<MismatchError>(
      [&] { training.optimizer.save(folder_, {.in_background = rank() == 0}); });
  expect_contains(text, "in_background");
}

}  // namespace kolo::test::background_save_test
