// Data-parallel training with four more lines than on one process, marked (1) to (4). It learns to
// classify images of digits, which drawn/ generates, so nothing needs to be downloaded.
//
//   mpirun -np 2 04_wrap_optimizer
#include <cstddef>
#include <cstdio>

#include <ATen/Functions.h>
#include <torch/data/dataloader.h>
#include <torch/data/datasets/map.h>
#include <torch/data/transforms/stack.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>
#include <torch/serialize.h>

#include "drawn/pictures.hpp"
#include "drawn/training.hpp"
#include "kolo/extras/distributed_sampler.hpp"
#include "kolo/kolo.hpp"

namespace {

struct Epoch {
  std::size_t steps = 0;
  at::Tensor loss_sum = at::zeros({});
};

/// Trains on all batches of the loader.
template <class Loader>
Epoch run_epoch(torch::nn::Sequential& model, torch::optim::Optimizer& optimizer, Loader& loader) {
  Epoch epoch;
  for (auto& batch : loader) {
    optimizer.zero_grad();
    const at::Tensor loss =
        torch::nn::functional::cross_entropy(model->forward(batch.data), batch.target);
    loss.backward();
    optimizer.step();
    epoch.loss_sum += loss.detach();
    ++epoch.steps;
  }
  return epoch;
}

}  // namespace

int main(int argc, char** argv) {
  constexpr std::size_t kPictures = 4000;
  constexpr std::size_t kBatch = 32;  // per rank

  kolo::Runtime runtime;  // (1) starts Kolo

  torch::nn::Sequential model(torch::nn::Flatten(),
                              torch::nn::Linear(drawn::kSide * drawn::kSide, 64), torch::nn::ReLU(),
                              torch::nn::Linear(64, drawn::kDigits));
  kolo::broadcast_parameters(*model, /*root=*/0);  // (2) equal initial values
  // A step uses one batch per rank: the usual recipe scales the learning rate accordingly.
  torch::optim::AdamW adamw(model->parameters(), 1e-3 * kolo::size());
  kolo::DistributedOptimizer optimizer(adamw, *model);  // (3) averages gradients during backward

  const drawn::Pictures held_out(drawn::Alphabet::Digits, /*first=*/1'000'000, 1000);
  // (4) every rank takes its share of the images, a new one in each epoch
  kolo::DistributedSampler sampler(kPictures);
  const auto loader =
      torch::data::make_data_loader(drawn::Pictures(drawn::Alphabet::Digits, /*first=*/0, kPictures)
                                        .map(torch::data::transforms::Stack<>()),
                                    sampler, kBatch);
  for (std::size_t epoch = 0; epoch < 6; ++epoch) {
    const auto [steps, loss_sum] = run_epoch(model, optimizer, *loader);
    // Each rank knows the loss of its own share: average over ranks, print on one.
    const double loss = kolo::allreduce(loss_sum / static_cast<double>(steps)).item<double>();
    const double accuracy = drawn::accuracy(model, held_out);
    if (kolo::rank() == 0) {
      std::printf("epoch %zu: %zu steps, loss %.4f, accuracy %.1f %% of 1000\n", epoch + 1, steps,
                  loss, accuracy);
    }
  }
  // All ranks have the same parameters: one saves them.
  if (kolo::rank() == 0 && argc > 1) torch::save(model, argv[1]);
  return 0;
}
