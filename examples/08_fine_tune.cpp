// Fine-tuning: a trunk from a file of weights, here of 06_pretrain_sharded, is frozen, and a new head
// learns another task.
//
//   mpirun -np 2 08_fine_tune [file]
#include <cstdio>
#include <filesystem>

#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include "kolo/kolo.hpp"

int main(int argc, char** argv) {
  kolo::Runtime runtime;
  const std::filesystem::path file =
      argc > 1 ? argv[1]
               : std::filesystem::temp_directory_path() / "kolo-pretrained" / "all.safetensors";

  torch::nn::Linear trunk(2, 32);
  torch::nn::Linear head(32, 3);  // where the file has one with a single output
  torch::nn::Sequential model(trunk, torch::nn::Tanh(), head);
  kolo::broadcast_parameters(*model, /*root=*/0);
  for (at::Tensor& parameter : trunk->parameters()) parameter.requires_grad_(false);

  torch::optim::AdamW adamw(head->parameters(), 3e-2);
  kolo::DistributedOptimizer optimizer(adamw, *model);
  optimizer.load(file, {.strict = false});  // what has another shape keeps its values

  const at::Tensor points = (at::rand({256, 2}) + kolo::rank()) / kolo::size();
  const at::Tensor x = points.select(1, 0);
  const at::Tensor y = points.select(1, 1);
  const at::Tensor target = at::stack({x * y, (x - y).abs(), (2.0 * x).cos()}, 1);
  double loss_value = 0.0;
  for (int step = 0; step < 200; ++step) {
    optimizer.zero_grad();
    const at::Tensor loss = torch::nn::functional::mse_loss(model->forward(points), target);
    loss.backward();
    optimizer.step();
    loss_value = loss.item<double>();
  }
  std::printf("rank %d of %d: loss %.5f\n", kolo::rank(), kolo::size(), loss_value);
  return 0;
}
