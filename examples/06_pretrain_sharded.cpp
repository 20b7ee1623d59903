// Training with sharded optimizer state and gradients, and a checkpoint after every epoch. The loop
// is that of 04_wrap_optimizer, here drawn::train_epoch.
//
//   mpirun -np 2 06_pretrain_sharded [none | optimizer | gradients] [folder]
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <string>

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include "drawn/training.hpp"
#include "kolo/kolo.hpp"

int main(int argc, char** argv) {
  kolo::Runtime runtime;
  const kolo::Shard shard = kolo::shard_named(argc > 1 ? argv[1] : "gradients");
  const std::filesystem::path folder =
      argc > 2 ? argv[2] : std::filesystem::temp_directory_path() / "kolo-pretrained";

  torch::nn::Sequential model(torch::nn::Flatten(),
                              torch::nn::Linear(drawn::kSide * drawn::kSide, 64), torch::nn::ReLU(),
                              torch::nn::Linear(64, drawn::kDigits));
  kolo::broadcast_parameters(*model, /*root=*/0);
  torch::optim::AdamW adamw(model->parameters(), 2e-3);
  kolo::DistributedOptimizer optimizer(adamw, *model, {.shard = shard});

  const drawn::Pictures pictures(drawn::Alphabet::Digits, /*first=*/0, 4000);
  const drawn::Pictures held_out(drawn::Alphabet::Digits, /*first=*/1'000'000, 1000);
  for (std::size_t epoch = 0; epoch < 4; ++epoch) {
    drawn::train_epoch(model, optimizer, pictures, epoch, /*batch=*/64);
    optimizer.save(folder, {.keep_last = 2, .extras = {{"epochs", std::to_string(epoch + 1)}}});
    const double accuracy = drawn::accuracy(model, held_out);
    if (kolo::rank() == 0) {
      std::printf("epoch %zu: accuracy %.1f %% of 1000, saved in %s\n", epoch + 1, accuracy,
                  folder.c_str());
    }
  }
  // Everything in one file, for programs that do not read checkpoints.
  optimizer.save_full_state(folder / "all.safetensors");
  return 0;
}
