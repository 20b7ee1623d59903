#pragma once

#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

namespace mnist {

/// Two convolutions and two linear layers for images of 28×28.
class ConvNetImpl : public torch::nn::Module {
 public:
  ConvNetImpl();

  /// Logits [batch, 10] for `images` [batch, 1, 28, 28].
  at::Tensor forward(const at::Tensor& images);

 private:
  torch::nn::Conv2d first_{nullptr};
  torch::nn::Conv2d second_{nullptr};
  torch::nn::Linear hidden_{nullptr};
  torch::nn::Linear classifier_{nullptr};
};
TORCH_MODULE(ConvNet);

}  // namespace mnist
