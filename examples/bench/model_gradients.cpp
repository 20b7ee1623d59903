#include "bench/model_gradients.hpp"

#include <algorithm>
#include <array>
#include <functional>
#include <map>

namespace bench {

namespace {

using Counts = std::vector<std::size_t>;

void add_linear(Counts& counts, std::size_t inputs, std::size_t outputs) {
  counts.push_back(inputs * outputs);
  counts.push_back(outputs);
}

/// Layer or batch normalization: weight and bias.
void add_norm(Counts& counts, std::size_t width) {
  counts.push_back(width);
  counts.push_back(width);
}

void add_convolution(Counts& counts, std::size_t inputs, std::size_t outputs, std::size_t kernel) {
  counts.push_back(inputs * outputs * kernel * kernel);
  add_norm(counts, outputs);
}

// He et al., "Deep residual learning for image recognition", 2016: blocks of three convolutions,
// the first of a stage with one more on its shortcut; 1000 classes.
Counts resnet50() {
  constexpr std::size_t kStem = 64;
  constexpr std::size_t kExpansion = 4;
  constexpr std::array<std::size_t, 4> kBlocks{3, 4, 6, 3};
  Counts counts;
  add_convolution(counts, 3, kStem, 7);
  std::size_t channels = kStem;
  std::size_t width = kStem;
  for (const std::size_t blocks : kBlocks) {
    for (std::size_t block = 0; block < blocks; ++block) {
      add_convolution(counts, channels, width, 1);
      add_convolution(counts, width, width, 3);
      add_convolution(counts, width, kExpansion * width, 1);
      if (block == 0) add_convolution(counts, channels, kExpansion * width, 1);
      channels = kExpansion * width;
    }
    width *= 2;
  }
  add_linear(counts, channels, 1000);
  return counts;
}

constexpr std::size_t kLayers = 12;
constexpr std::size_t kModelWidth = 768;

// Devlin et al., "BERT", 2019, without a head for any task: words, positions, two segments; layers
// of query, key, value, output, and a feed-forward network four times as wide; a pooler.
Counts bert_base() {
  Counts counts{30522 * kModelWidth, 512 * kModelWidth, 2 * kModelWidth};
  add_norm(counts, kModelWidth);
  for (std::size_t layer = 0; layer < kLayers; ++layer) {
    for (int projection = 0; projection < 4; ++projection) {
      add_linear(counts, kModelWidth, kModelWidth);
    }
    add_norm(counts, kModelWidth);
    add_linear(counts, kModelWidth, 4 * kModelWidth);
    add_linear(counts, 4 * kModelWidth, kModelWidth);
    add_norm(counts, kModelWidth);
  }
  add_linear(counts, kModelWidth, kModelWidth);
  return counts;
}

// Radford et al., "Language models are unsupervised multitask learners", 2019; the output layer
// shares the word embedding.
Counts gpt2_small() {
  Counts counts{50257 * kModelWidth, 1024 * kModelWidth};
  for (std::size_t layer = 0; layer < kLayers; ++layer) {
    add_norm(counts, kModelWidth);
    add_linear(counts, kModelWidth, 3 * kModelWidth);
    add_linear(counts, kModelWidth, kModelWidth);
    add_norm(counts, kModelWidth);
    add_linear(counts, kModelWidth, 4 * kModelWidth);
    add_linear(counts, 4 * kModelWidth, kModelWidth);
  }
  add_norm(counts, kModelWidth);
  return counts;
}

const std::map<std::string, std::function<Counts()>>& models() {
  static const std::map<std::string, std::function<Counts()>> models{
      {"resnet50", resnet50}, {"bert_base", bert_base}, {"gpt2_small", gpt2_small}};
  return models;
}

}  // namespace

const std::vector<std::string>& model_names() {
  static const std::vector<std::string> names{"resnet50", "bert_base", "gpt2_small"};
  return names;
}

std::vector<std::size_t> gradient_counts(const std::string& model) {
  Counts counts = models().at(model)();
  std::ranges::reverse(counts);
  return counts;
}

}  // namespace bench
