// Learns to tell two kinds of images apart.
#include <iostream>

#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mse_loss.h>
#include <kolo/runtime.hpp>
#include <kolo/torch/distributed_optimizer.hpp>
#include <kolo/torch/parameter_sync.hpp>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

int main() {
  const kolo::Runtime runtime;  // one process
  torch::nn::Linear model(784, 1);
  kolo::broadcast_parameters(*model, /*root=*/0);
  kolo::DistributedOptimizer optimizer(torch::optim::SGD(model->parameters(), 1e-3), *model);
  const at::Tensor images = at::cat({at::full({8, 784}, 0.5), at::full({8, 784}, -0.5)});
  const at::Tensor kinds = at::cat({at::full({8, 1}, 1.0), at::full({8, 1}, -1.0)});
  float loss = 0;
  for (int step = 0; step < 100; ++step) {
    optimizer.zero_grad();
    const at::Tensor error = at::mse_loss(model->forward(images), kinds);
    error.backward();
    optimizer.step();
    loss = error.item<float>();
  }
  std::cout << "loss " << loss << '\n';
  return loss < 1e-3F ? 0 : 1;
}
