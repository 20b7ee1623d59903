// Resumes from a checkpoint written on any number of ranks and in any shard mode, here by
// 06_pretrain_sharded.
//
//   mpirun -np 3 07_resume_elsewhere [folder]
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
  const std::filesystem::path folder =
      argc > 1 ? argv[1] : std::filesystem::temp_directory_path() / "kolo-pretrained";

  torch::nn::Sequential model(torch::nn::Flatten(),
                              torch::nn::Linear(drawn::kSide * drawn::kSide, 64), torch::nn::ReLU(),
                              torch::nn::Linear(64, drawn::kDigits));
  torch::optim::AdamW adamw(model->parameters(), 2e-3);
  kolo::DistributedOptimizer optimizer(adamw, *model, {.shard = kolo::Shard::Optimizer});
  // Loads weights, optimizer state and the step: no broadcast is needed.
  const kolo::Loaded loaded = optimizer.load(folder);

  const drawn::Pictures pictures(drawn::Alphabet::Digits, /*first=*/0, 4000);
  const drawn::Pictures held_out(drawn::Alphabet::Digits, /*first=*/1'000'000, 1000);
  const double accuracy_before = drawn::accuracy(model, held_out);
  // The following epochs: their order of images depends only on the epoch.
  const std::size_t first_epoch = std::stoul(loaded.extras.at("epochs"));
  for (std::size_t epoch = first_epoch; epoch < first_epoch + 2; ++epoch) {
    drawn::train_epoch(model, optimizer, pictures, epoch, /*batch=*/64);
  }
  const double accuracy = drawn::accuracy(model, held_out);
  if (kolo::rank() == 0) {
    std::printf("after epoch %zu: accuracy %.1f %% of 1000, as loaded from %s\n", first_epoch,
                accuracy_before, loaded.path.c_str());
    std::printf("after epoch %zu: accuracy %.1f %% of 1000, on %d ranks\n", first_epoch + 2,
                accuracy, kolo::size());
  }
  return 0;
}
