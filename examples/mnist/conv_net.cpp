#include "mnist/conv_net.hpp"

#include <ATen/Functions.h>

namespace mnist {

ConvNetImpl::ConvNetImpl() {
  using Convolution = torch::nn::Conv2dOptions;
  first_ = register_module("first", torch::nn::Conv2d(Convolution(1, 16, 5)));
  second_ = register_module("second", torch::nn::Conv2d(Convolution(16, 32, 5)));
  hidden_ = register_module("hidden", torch::nn::Linear(32 * 4 * 4, 128));
  classifier_ = register_module("classifier", torch::nn::Linear(128, 10));
}

at::Tensor ConvNetImpl::forward(const at::Tensor& images) {
  const auto stage = [](torch::nn::Conv2d& convolution, const at::Tensor& input) {
    return at::max_pool2d(convolution(input).relu(), {2, 2});
  };
  const at::Tensor features = stage(second_, stage(first_, images)).flatten(1);
  return classifier_(hidden_(features).relu());
}

}  // namespace mnist
