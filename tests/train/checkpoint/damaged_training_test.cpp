// Damaged checkpoints never crash load() and never corrupt the training. Either load() reports an
// error and leaves the training unchanged, or it loads exactly the values that were saved.
// KOLO_TEST_SEEDS=500 tries that many seeds (with --longest-test=3000 as the first argument),
// KOLO_TEST_SEED=17 only that one.
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <string>
#include <tuple>

#include <gtest/gtest.h>

#include "kolo/error.hpp"
#include "train/checkpoint/checkpoint_damage.hpp"
#include "train/checkpoint/checkpoint_image.hpp"
#include "train/small_training.hpp"
#include "train/training_fixture.hpp"

namespace kolo::test::damaged_training_test {

constexpr std::uint64_t kSeeds = 25;  // in the test command

std::uint64_t number_in(const char* variable, std::uint64_t otherwise) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? otherwise : std::stoull(text);
}

class DamagedTrainingTest : public TrainingTest,
                            public testing::WithParamInterface<std::tuple<Shard, bool>> {
 protected:
  DamagedTrainingTest() : training_(std::get<0>(GetParam()), std::get<1>(GetParam())) {
    training_.run(0, 2);
    training_.save(folder_.path() / "good");
    training_.run(2, 3);
    training_.save(folder_.path() / "other");
    good_ = read_image(folder_.path() / "good");
    other_ = read_image(folder_.path() / "other");
  }

  /// The content that save() would write now.
  CheckpointImage image() {
    training_.save(folder_.path() / "now");
    return read_image(folder_.path() / "now");
  }

  /// @return whether load() refused the checkpoint
  bool try_to_load(const std::string& what) {
    std::string text;
    try {
      training_.load(folder_.path() / "damaged");
    } catch (const InvalidArgument& error) {
      text = error.what();
    } catch (const BackendError& error) {  // an error of the system: a file is not a regular file
      text = error.what();
    }
    if (text.empty()) {
      EXPECT_TRUE(image() == good_) << what << ": loaded with other values";
      training_.load(folder_.path() / "other");
      return false;
    }
    for (const char letter : text) {
      const auto byte = static_cast<unsigned char>(letter);
      EXPECT_TRUE((byte >= 0x20 || byte == '\n') && byte != 0x7f) << what << ": " << text;
    }
    EXPECT_TRUE(image() == other_) << what << ": refused, but not as before: " << text;
    return true;
  }

  void train_on() {
    training_.run(3, 4);
    training_.load(folder_.path() / "other");
  }

  CommonFolder folder_;
  SmallTraining training_;
  CheckpointImage good_;
  CheckpointImage other_;
};

INSTANTIATE_TEST_SUITE_P(Modes, DamagedTrainingTest,
                         testing::Combine(testing::Values(Shard::None, Shard::Gradients),
                                          testing::Values(true)),
                         [](const auto& test) {
                           return std::get<0>(test.param) == Shard::None ? "Whole" : "Sharded";
                         });

TEST_P(DamagedTrainingTest, DamagedCheckpoint_IsRefusedOrHarmless) {
  namespace fs = std::filesystem;
  const std::uint64_t only = number_in("KOLO_TEST_SEED", 0);
  const std::uint64_t end = only > 0 ? only : number_in("KOLO_TEST_SEEDS", kSeeds);
  CheckpointDamage damage(good_, folder_.path() / "good" / "checkpoint-00000001",
                          folder_.path() / "other" / "checkpoint-00000001");
  std::uint64_t refused = 0;
  for (std::uint64_t seed = only > 0 ? only : 1; seed <= end; ++seed) {
    const std::string what = "KOLO_TEST_SEED=" + std::to_string(seed) + " " +
                             damage.write(folder_.path() / "damaged", seed);
    if (only > 0) std::cout << what << std::endl;
    if (try_to_load(what)) ++refused;
    if (seed % 20 == 0) train_on();
    barrier();
    if (runtime_.rank() == 0) fs::remove_all(folder_.path() / "damaged");
    barrier();
  }
  const std::uint64_t tried = only > 0 ? 1 : end;
  if (runtime_.rank() == 0) {
    std::cout << refused << " of " << tried << " damaged checkpoints were refused, "
              << tried - refused << " had lost nothing" << std::endl;
  }
  EXPECT_GE(refused, tried - tried / 20);
}

}  // namespace kolo::test::damaged_training_test
