// Training where the ranks divide the optimizer's state and the gradients among themselves, with a
// checkpoint now and then. The loop is that of 04_wrap_optimizer.
//
//   mpirun -np 2 06_pretrain_sharded [none | optimizer | gradients] [folder]
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
  const kolo::Shard shard = kolo::shard_named(argc > 1 ? argv[1] : "gradients");
  const std::filesystem::path folder =
      argc > 2 ? argv[2] : std::filesystem::temp_directory_path() / "kolo-pretrained";

  torch::nn::Sequential model(torch::nn::Linear(2, 32), torch::nn::Tanh(),
                              torch::nn::Linear(32, 1));
  kolo::broadcast_parameters(*model, /*root=*/0);
  torch::optim::AdamW adamw(model->parameters(), 3e-2);
  kolo::DistributedOptimizer optimizer(adamw, *model, {.shard = shard});

  double loss_value = 0.0;
  for (std::uint64_t step = 0; step < 400; ++step) {
    at::manual_seed(step);  // all draw the same batch, and each takes its rows of it
    const at::Tensor points = at::rand({240, 2}).view({kolo::size(), -1, 2})[kolo::rank()];
    const at::Tensor target = (3.0 * points).sin().sum(1, /*keepdim=*/true);
    optimizer.zero_grad();
    const at::Tensor loss = torch::nn::functional::mse_loss(model->forward(points), target);
    loss.backward();
    optimizer.step();
    loss_value = loss.item<double>();
    if (step % 200 == 199) optimizer.save(folder, {.keep_last = 2});
  }
  // Everything in one file, for programs that know nothing of checkpoints.
  optimizer.save_full_state(folder / "all.safetensors");
  std::printf("rank %d of %d: loss %.5f, saved in %s\n", kolo::rank(), kolo::size(), loss_value,
              folder.c_str());
  return 0;
}
