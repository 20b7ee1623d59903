#include "gpt/model.hpp"

#include <array>
#include <cmath>

#include <ATen/Context.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>

#include "gpt/batch.hpp"
#include "gpt/sample.hpp"
#include "resnet/resnet50.hpp"

namespace model_test {

constexpr std::string_view kText = "the quick brown fox jumps over the lazy dog";

std::int64_t count_parameters(const torch::nn::Module& model) {
  std::int64_t count = 0;
  for (const at::Tensor& parameter : model.parameters()) count += parameter.numel();
  return count;
}

gpt::Gpt tiny_model() {
  at::manual_seed(3);
  return gpt::Gpt(gpt::ModelOptions{.layers = 2, .width = 32, .heads = 4, .context = 16});
}

at::Tensor window(std::size_t start, std::size_t length) {
  const std::array<std::size_t, 1> starts{start};
  return gpt::read_windows(kText, starts, length);
}

TEST(Batch, ReadWindows_AreTheBytesOfTheText) {
  const std::array<std::size_t, 2> starts{4, 0};
  const at::Tensor windows = gpt::read_windows(
      "ab\xff"
      "defg",
      starts, 3);
  ASSERT_EQ(windows.sizes(), (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(windows[0][0].item<int>(), 'e');
  EXPECT_EQ(windows[0][2].item<int>(), 'g');
  EXPECT_EQ(windows[1][2].item<int>(), 0xff);
}

// 12 width² per layer, two norms per layer and a final one, bytes and positions.
TEST(Gpt, MediumPreset_Has10774272Parameters) {
  gpt::Gpt model(gpt::ModelOptions{.layers = 6, .width = 384, .heads = 6, .context = 128});
  EXPECT_EQ(count_parameters(*model), 6 * (12 * 384 * 384 + 4 * 384) + 2 * 384 + (256 + 128) * 384);
  EXPECT_EQ(count_parameters(*model), 10774272);
}

TEST(Gpt, UntrainedLoss_IsThatOfUniformProbabilities) {
  gpt::Gpt model = tiny_model();
  EXPECT_NEAR(gpt::next_byte_loss(model, window(0, 17)).item<double>(), std::log(256.0), 0.1);
}

TEST(Gpt, Logits_DependOnNoLaterByte) {
  gpt::Gpt model = tiny_model();
  const at::Tensor bytes = window(0, 16);
  const at::Tensor changed = bytes.clone();
  changed[0][9] = 'X';
  const at::Tensor before = model(bytes);
  const at::Tensor after = model(changed);
  EXPECT_TRUE(at::allclose(before.narrow(1, 0, 9), after.narrow(1, 0, 9), 1e-5, 1e-6));
  for (std::int64_t position = 9; position < 16; ++position) {
    EXPECT_FALSE(at::allclose(before.select(1, position), after.select(1, position), 1e-5, 1e-6))
        << position;
  }
}

TEST(Gpt, EveryParameter_GetsAGradient) {
  gpt::Gpt model = tiny_model();
  gpt::next_byte_loss(model, window(0, 17)).backward();
  for (const auto& parameter : model->named_parameters()) {
    EXPECT_GT(parameter.value().grad().abs().max().item<double>(), 1e-8) << parameter.key();
  }
}

TEST(Gpt, LearnsAShortTextByHeart) {
  gpt::Gpt model = tiny_model();
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-2));
  const at::Tensor windows = window(0, 17);
  double loss = 0;
  for (int step = 0; step < 80; ++step) {
    optimizer.zero_grad();
    const at::Tensor result = gpt::next_byte_loss(model, windows);
    result.backward();
    optimizer.step();
    loss = result.item<double>();
  }
  EXPECT_LT(loss, 0.05);
  EXPECT_EQ(gpt::sample(model, kText.substr(0, 4), 12), kText.substr(0, 16));
}

TEST(Sample, Printable_ReplacesControlAndNonAsciiBytes) {
  EXPECT_EQ(gpt::printable("a\x1b[2J\tb\n\x80\r"), "a?[2J\tb\n??");
}

TEST(ResNet50, HasTheUsualParametersAndOutputs) {
  resnet::ResNet50 model;
  EXPECT_EQ(model->parameters().size(), 161U);
  EXPECT_EQ(count_parameters(*model), 25557032);
  const at::Tensor images = at::zeros({2, 3, 64, 64});
  EXPECT_EQ(model(images).sizes(), (std::vector<std::int64_t>{2, 1000}));
}

}  // namespace model_test
