// Goes on from a checkpoint that any number of ranks has written, with any sharding: here
// 06_pretrain_sharded.
//
//   mpirun -np 3 07_resume_elsewhere [folder]
#include <cstdint>
#include <cstdio>
#include <filesystem>

#include <ATen/Context.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include "kolo/kolo.hpp"

int main(int argc, char** argv) {
  kolo::Runtime runtime;
  const std::filesystem::path folder =
      argc > 1 ? argv[1] : std::filesystem::temp_directory_path() / "kolo-pretrained";

  torch::nn::Sequential model(torch::nn::Linear(2, 32), torch::nn::Tanh(),
                              torch::nn::Linear(32, 1));
  torch::optim::AdamW adamw(model->parameters(), 3e-2);
  kolo::DistributedOptimizer optimizer(adamw, *model, {.shard = kolo::Shard::Optimizer});
  // Weights, the optimizer's state and its step: no broadcast is needed.
  const kolo::Loaded loaded = optimizer.load(folder);

  const auto first_step = static_cast<std::uint64_t>(loaded.steps);
  double loss_value = 0.0;
  for (std::uint64_t step = first_step; step < first_step + 100; ++step) {
    at::manual_seed(step);  // the batches that follow, however many ranks share them
    const at::Tensor points = at::rand({240, 2}).view({kolo::size(), -1, 2})[kolo::rank()];
    const at::Tensor target = (3.0 * points).sin().sum(1, /*keepdim=*/true);
    optimizer.zero_grad();
    const at::Tensor loss = torch::nn::functional::mse_loss(model->forward(points), target);
    loss.backward();
    optimizer.step();
    loss_value = loss.item<double>();
  }
  std::printf("rank %d of %d: loss %.5f after %d steps, the first %d of them from %s\n",
              kolo::rank(), kolo::size(), loss_value, static_cast<int>(first_step) + 100,
              static_cast<int>(first_step), loaded.path.c_str());
  return 0;
}
