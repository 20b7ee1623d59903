#include "compare/models.hpp"

#include <tuple>

#include <ATen/Context.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/relu.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/rnn.h>

#include "common/model.hpp"
#include "gpt/model.hpp"

namespace compare {
namespace {

constexpr std::int64_t kHeadWidth = 64;
constexpr std::int64_t kContext = 64;   // bytes
constexpr std::int64_t kPixels = 8;     // height and width of an image
constexpr std::int64_t kFrames = 32;    // of an audio clip
constexpr std::int64_t kFeatures = 80;  // of a frame, as in a mel spectrogram
constexpr std::int64_t kClasses = 40;   // of images; and of frames, as there are phonemes

/// A row of residual blocks: x + conv(relu(norm(conv(relu(norm(x)))))).
class ConvNet final : public torch::nn::Module {
 public:
  ConvNet(int blocks, std::int64_t channels) {
    stem_ = register_module("stem", convolution(3, channels));
    for (int i = 0; i < 2 * blocks; ++i) {
      norms_->push_back(torch::nn::BatchNorm2d(channels));
      convolutions_->push_back(convolution(channels, channels));
    }
    register_module("norms", norms_);
    register_module("convolutions", convolutions_);
    classifier_ = register_module("classifier", torch::nn::Linear(channels, kClasses));
  }
  at::Tensor forward(const at::Tensor& images) {
    at::Tensor x = stem_->forward(images);
    for (std::size_t i = 0; i < norms_->size(); i += 2) {
      x = x + half(i + 1, half(i, x));
    }
    return classifier_->forward(x.mean({2, 3}));
  }

 private:
  static torch::nn::Conv2d convolution(std::int64_t inputs, std::int64_t outputs) {
    return torch::nn::Conv2d(torch::nn::Conv2dOptions(inputs, outputs, 3).padding(1).bias(false));
  }
  at::Tensor half(std::size_t i, const at::Tensor& x) {
    const at::Tensor normal = norms_[i]->as<torch::nn::BatchNorm2d>()->forward(x);
    return convolutions_[i]->as<torch::nn::Conv2d>()->forward(at::relu(normal));
  }

  torch::nn::Conv2d stem_{nullptr};
  torch::nn::ModuleList norms_;
  torch::nn::ModuleList convolutions_;
  torch::nn::Linear classifier_{nullptr};
};

/// Classifies the phoneme of every frame.
class SpeechNet final : public torch::nn::Module {
 public:
  SpeechNet(int blocks, std::int64_t width) {
    lstm_ = register_module(
        "lstm", torch::nn::LSTM(
                    torch::nn::LSTMOptions(kFeatures, width).num_layers(blocks).batch_first(true)));
    classifier_ = register_module("classifier", torch::nn::Linear(width, kClasses));
  }
  at::Tensor forward(const at::Tensor& sound) {
    return classifier_->forward(std::get<0>(lstm_->forward(sound)));
  }

 private:
  torch::nn::LSTM lstm_{nullptr};
  torch::nn::Linear classifier_{nullptr};
};

Learner transformer(const Size& size) {
  gpt::Gpt model(gpt::ModelOptions{.layers = size.blocks,
                                   .width = size.width,
                                   .heads = size.width / kHeadWidth,
                                   .context = kContext});
  const at::Tensor windows =
      at::randint(256, {size.batch, kContext + 1}, at::TensorOptions(at::kLong));
  return {model.ptr(), [model, windows]() mutable { return gpt::next_byte_loss(model, windows); }};
}

Learner convnet(const Size& size) {
  const auto model = std::make_shared<ConvNet>(size.blocks, size.width / 2);
  const at::Tensor images = at::randn({size.batch, 3, kPixels, kPixels});
  const at::Tensor classes = at::randint(kClasses, {size.batch}, at::TensorOptions(at::kLong));
  return {model, [=] { return at::cross_entropy_loss(model->forward(images), classes); }};
}

Learner speech(const Size& size) {
  const auto model = std::make_shared<SpeechNet>(size.blocks, size.width);
  const at::Tensor sound = at::randn({size.batch, kFrames, kFeatures});
  const at::Tensor phonemes =
      at::randint(kClasses, {size.batch * kFrames}, at::TensorOptions(at::kLong));
  return {model,
          [=] { return at::cross_entropy_loss(model->forward(sound).flatten(0, 1), phonemes); }};
}

}  // namespace

Learner make_learner(const std::string& model, const Size& size) {
  at::manual_seed(1);
  return model == "transformer" ? transformer(size)
         : model == "convnet"   ? convnet(size)
                                : speech(size);
}

Training::Training(const std::string& model, const Size& size, kolo::Shard shard)
    : learner_(make_learner(model, size)),
      adamw_(learner_.model->parameters(), torch::optim::AdamWOptions(1e-4)),
      optimizer_(adamw_, *learner_.model, {.shard = shard}) {}

void Training::step() {
  optimizer_.zero_grad();
  learner_.loss().backward();
  optimizer_.step();
}

std::int64_t Training::parameters() const { return examples::count_parameters(*learner_.model); }

}  // namespace compare
