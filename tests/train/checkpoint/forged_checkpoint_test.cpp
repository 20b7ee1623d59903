// Forged checkpoints, with the right checksums but invalid content: load() refuses them before it
// changes anything, and trusts no size in a file.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kolo/error.hpp"
#include "train/checkpoint/checkpoint_image.hpp"
#include "train/sharding.hpp"
#include "train/small_training.hpp"
#include "train/training_fixture.hpp"

namespace kolo::test::forged_checkpoint_test {

class ForgedCheckpointTest : public TrainingTest, public testing::WithParamInterface<Shard> {
 protected:
  ForgedCheckpointTest() : training_(GetParam()) {
    training_.run(0, 2);
    training_.save(folder_.path() / "good");
    good_ = read_image(folder_.path() / "good");
    training_.run(2, 3);
  }

  /// The content that save() would write now.
  CheckpointImage image() {
    training_.save(folder_.path() / "now");
    return read_image(folder_.path() / "now");
  }

  void expect_refused(const std::function<void(CheckpointImage&)>& forge, const std::string& text) {
    CheckpointImage forged = good_;
    forge(forged);
    write_image(folder_.path() / "forged", forged);
    const CheckpointImage before = image();
    expect_contains(
        text_thrown_by<InvalidArgument>([&] { training_.load(folder_.path() / "forged"); }), text);
    EXPECT_TRUE(image() == before) << text;
  }

  static void set_shape(CheckpointImage& image, const std::string& name, DType dtype,
                        std::vector<std::int64_t> shape) {
    const auto count = static_cast<std::size_t>(checkpoints::elements_of(shape).value());
    image.tensors.at(name) = {dtype, std::move(shape),
                              std::vector<std::byte>(count * size_of(dtype))};
  }

  CommonFolder folder_;
  SmallTraining training_;
  CheckpointImage good_;
};

INSTANTIATE_TEST_SUITE_P(Modes, ForgedCheckpointTest, testing::ValuesIn(all_modes()),
                         [](const auto& test) {
                           return "Shard" + std::to_string(static_cast<int>(test.param));
                         });

TEST_P(ForgedCheckpointTest, RandomStateOfAnotherTypeOrSize_IsRefused) {
  const std::int64_t bytes = good_.tensors.at("random.0").shape.at(0);
  expect_refused(
      [&](CheckpointImage& image) { set_shape(image, "random.0", DType::Float64, {bytes}); },
      "'random.0' is float64");
  expect_refused(
      [&](CheckpointImage& image) { set_shape(image, "random.0", DType::UInt8, {bytes - 1}); },
      "'random.0' is uint8");
  expect_refused(
      [&](CheckpointImage& image) {
        for (std::byte& byte : image.tensors.at("random.0").bytes) byte = std::byte{0xff};
      },
      "'random.0' is not a valid generator state");
}

TEST_P(ForgedCheckpointTest, OptimizerStateOfAnotherTypeOrShape_IsRefused) {
  const std::string name = "optimizer.exp_avg.2.weight";
  const auto mark = [&](CheckpointImage& image, bool is_elementwise) {
    image.details["state"]["2.weight"]["tensors"]["exp_avg"] = is_elementwise;
  };
  for (const bool is_elementwise : {true, false}) {
    // Too few elements, and the right number in another shape.
    for (const std::vector<std::int64_t>& shape :
         {std::vector<std::int64_t>{1}, std::vector<std::int64_t>{4, 3},
          std::vector<std::int64_t>{12}}) {
      expect_refused(
          [&](CheckpointImage& image) {
            set_shape(image, name, DType::Float32, shape);
            mark(image, is_elementwise);
          },
          name);
    }
    expect_refused(
        [&](CheckpointImage& image) {
          set_shape(image, name, DType::Float16, {3, 4});
          mark(image, is_elementwise);
        },
        name);
  }
}

}  // namespace kolo::test::forged_checkpoint_test
