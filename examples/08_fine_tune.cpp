// Fine-tuning: the first layer, from a file of weights written by 06_pretrain_sharded, is frozen,
// and a new last layer learns to classify letters instead of digits.
//
//   mpirun -np 2 08_fine_tune [file]
#include <cstddef>
#include <cstdio>
#include <filesystem>

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include "drawn/training.hpp"
#include "kolo/kolo.hpp"

int main(int argc, char** argv) {
  kolo::Runtime runtime;
  const std::filesystem::path file =
      argc > 1 ? argv[1]
               : std::filesystem::temp_directory_path() / "kolo-pretrained" / "all.safetensors";

  torch::nn::Linear trunk(drawn::kSide * drawn::kSide, 64);
  torch::nn::Linear head(64, drawn::kLetters);  // in the file it has one output per digit
  torch::nn::Sequential model(torch::nn::Flatten(), trunk, torch::nn::ReLU(), head);
  kolo::broadcast_parameters(*model, /*root=*/0);
  for (at::Tensor& parameter : trunk->parameters()) parameter.requires_grad_(false);

  torch::optim::AdamW adamw(head->parameters(), 5e-3);
  kolo::DistributedOptimizer optimizer(adamw, *model);
  optimizer.load(file, {.strict = false});  // tensors of another shape keep their values

  const drawn::Pictures pictures(drawn::Alphabet::Letters, /*first=*/0, 2000);
  const drawn::Pictures held_out(drawn::Alphabet::Letters, /*first=*/1'000'000, 1000);
  const double accuracy_before = drawn::accuracy(model, held_out);
  for (std::size_t epoch = 0; epoch < 4; ++epoch) {
    drawn::train_epoch(model, optimizer, pictures, epoch, /*batch=*/64);
  }
  const double accuracy = drawn::accuracy(model, held_out);
  if (kolo::rank() == 0) {
    std::printf("accuracy on letters: %.1f %% before, %.1f %% after, of 1000\n", accuracy_before,
                accuracy);
  }
  return 0;
}
