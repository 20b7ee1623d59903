#pragma once

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

namespace resnet {

/// ResNet-50 (He et al. 2015) in the form "v1.5", which halves the image in the 3×3 convolution of
/// a block instead of its first 1×1: 25,557,032 parameters in 161 tensors.
class ResNet50Impl : public torch::nn::Module {
 public:
  ResNet50Impl();

  /// Logits [batch, 1000] for `images` [batch, 3, height, width] of at least 32×32.
  at::Tensor forward(const at::Tensor& images);

 private:
  torch::nn::Conv2d stem_{nullptr};
  torch::nn::BatchNorm2d stem_norm_{nullptr};
  torch::nn::ModuleList blocks_;
  torch::nn::Linear classifier_{nullptr};
};
TORCH_MODULE(ResNet50);

}  // namespace resnet
