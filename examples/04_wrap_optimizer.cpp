// Data-parallel training in four lines more than on one process: marked (1) to (4).
//
//   mpirun -np 2 04_wrap_optimizer
#include <cstdio>

#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include "kolo/kolo.hpp"

int main() {
  kolo::Runtime runtime;  // (1) joins the other processes
  torch::nn::Sequential model(torch::nn::Linear(2, 32), torch::nn::Tanh(),
                              torch::nn::Linear(32, 1));
  kolo::broadcast_parameters(*model, /*root=*/0);  // (2) all start alike
  torch::optim::AdamW adamw(model->parameters(), 1e-2);
  kolo::DistributedOptimizer optimizer(adamw, *model);  // (3) averages gradients during backward

  // (4) every rank learns from its own part of the data: here a square on the diagonal.
  const at::Tensor points = at::rand({256, 2});
  const at::Tensor mine = (points + at::full({2}, kolo::rank(), at::kFloat)) / kolo::size();
  const at::Tensor target = (3.0 * mine).sin().sum(1, /*keepdim=*/true);

  double loss_value = 0.0;
  for (int step = 0; step < 300; ++step) {
    optimizer.zero_grad();
    const at::Tensor loss = torch::nn::functional::mse_loss(model->forward(mine), target);
    loss.backward();
    optimizer.step();
    loss_value = loss.item<double>();
  }
  std::printf("rank %d of %d: loss %.5f\n", kolo::rank(), kolo::size(), loss_value);
  return 0;
}
