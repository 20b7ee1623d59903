#include "resnet/resnet50.hpp"

#include <array>

#include <ATen/ops/max_pool2d.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/relu.h>
#include <torch/nn/init.h>

namespace resnet {
namespace {

constexpr std::int64_t kExpansion = 4;  // a block's output channels per inner channel
constexpr std::int64_t kClasses = 1000;

struct Stage {
  std::int64_t channels;
  int blocks;
  std::int64_t stride;  // of the first block
};
constexpr std::array kStages{Stage{64, 3, 1}, Stage{128, 4, 2}, Stage{256, 6, 2}, Stage{512, 3, 2}};

torch::nn::Conv2d convolution(std::int64_t inputs, std::int64_t outputs, std::int64_t size,
                              std::int64_t stride) {
  torch::nn::Conv2d convolution(
      torch::nn::Conv2dOptions(inputs, outputs, size).stride(stride).padding(size / 2).bias(false));
  torch::nn::init::kaiming_normal_(convolution->weight, 0.0, torch::kFanOut, torch::kReLU);
  return convolution;
}

class BottleneckImpl : public torch::nn::Module {
 public:
  BottleneckImpl(std::int64_t inputs, std::int64_t channels, std::int64_t stride)
      : reduce_(register_module("reduce", convolution(inputs, channels, 1, 1))),
        reduce_norm_(register_module("reduce_norm", torch::nn::BatchNorm2d(channels))),
        mix_(register_module("mix", convolution(channels, channels, 3, stride))),
        mix_norm_(register_module("mix_norm", torch::nn::BatchNorm2d(channels))),
        expand_(register_module("expand", convolution(channels, kExpansion * channels, 1, 1))),
        expand_norm_(
            register_module("expand_norm", torch::nn::BatchNorm2d(kExpansion * channels))) {
    if (inputs == kExpansion * channels && stride == 1) return;
    shortcut_ = register_module("shortcut", convolution(inputs, kExpansion * channels, 1, stride));
    shortcut_norm_ =
        register_module("shortcut_norm", torch::nn::BatchNorm2d(kExpansion * channels));
  }

  at::Tensor forward(const at::Tensor& input) {
    at::Tensor state = at::relu(reduce_norm_(reduce_(input)));
    state = at::relu(mix_norm_(mix_(state)));
    state = expand_norm_(expand_(state));
    state += shortcut_ ? shortcut_norm_(shortcut_(input)) : input;
    return at::relu(state);
  }

 private:
  torch::nn::Conv2d reduce_;
  torch::nn::BatchNorm2d reduce_norm_;
  torch::nn::Conv2d mix_;
  torch::nn::BatchNorm2d mix_norm_;
  torch::nn::Conv2d expand_;
  torch::nn::BatchNorm2d expand_norm_;
  torch::nn::Conv2d shortcut_{nullptr};  // if input and output differ in shape
  torch::nn::BatchNorm2d shortcut_norm_{nullptr};
};
TORCH_MODULE(Bottleneck);

}  // namespace

ResNet50Impl::ResNet50Impl() {
  std::int64_t channels = kStages[0].channels;
  stem_ = register_module("stem", convolution(3, channels, 7, 2));
  stem_norm_ = register_module("stem_norm", torch::nn::BatchNorm2d(channels));
  for (const Stage& stage : kStages) {
    for (int i = 0; i < stage.blocks; ++i) {
      blocks_->push_back(Bottleneck(channels, stage.channels, i == 0 ? stage.stride : 1));
      channels = kExpansion * stage.channels;
    }
  }
  register_module("blocks", blocks_);
  classifier_ = register_module("classifier", torch::nn::Linear(channels, kClasses));
}

at::Tensor ResNet50Impl::forward(const at::Tensor& images) {
  at::Tensor state = at::relu(stem_norm_(stem_(images)));
  state = at::max_pool2d(state, /*kernel_size=*/3, /*stride=*/2, /*padding=*/1);
  for (const auto& block : *blocks_) state = block->as<Bottleneck>()->forward(state);
  return classifier_(state.mean({2, 3}));
}

}  // namespace resnet
