// Training that survives failures: on each start it resumes from its newest checkpoint, if there is
// one, and it saves one every few steps. kolo-restart restarts it whenever it fails, and the run
// ends with the same parameters, bit for bit, as if it had never failed. When a scheduler asks it
// to leave, it saves, and does.
//
//   kolo-restart -np 2 --preempt 60s -- ./11_survive_failures [folder] [steps]
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <string>

#include <ATen/core/grad_mode.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>
#include <torch/utils.h>

#include "common/digest.hpp"
#include "drawn/pictures.hpp"
#include "kolo/kolo.hpp"

namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kStepsPerCheckpoint = 20;
constexpr std::size_t kBatch = 32;  // of all ranks together

/// This rank's share of the images of a step, which depend only on the step's number.
torch::data::Example<> pictures_of(std::int64_t step) {
  const auto ranks = static_cast<std::size_t>(kolo::size());
  const auto rank = static_cast<std::size_t>(kolo::rank());
  drawn::Pictures batch(drawn::Alphabet::Digits, static_cast<std::size_t>(step) * kBatch, kBatch);
  return batch.range(kBatch * rank / ranks, kBatch * (rank + 1) / ranks);
}

/// A fingerprint of all parameters. Collective, since ranks may have to gather them.
std::string digest_of(const torch::nn::Sequential& model) {
  examples::Digest digest;
  for (const at::Tensor& parameter : model->parameters()) {
    const at::Tensor copy = parameter.detach().clone();
    digest.add({static_cast<const char*>(copy.const_data_ptr()), copy.nbytes()});
  }
  return digest.hex();
}

}  // namespace

int main(int argc, char** argv) {
  kolo::Runtime runtime;
  const fs::path folder = argc > 1 ? argv[1] : fs::temp_directory_path() / "kolo-surviving";
  const std::int64_t steps = argc > 2 ? std::stol(argv[2]) : 400;

  torch::manual_seed(1 + static_cast<std::uint64_t>(kolo::rank()));  // dropout differs by rank
  torch::nn::Sequential model(torch::nn::Flatten(),
                              torch::nn::Linear(drawn::kSide * drawn::kSide, 64), torch::nn::ReLU(),
                              torch::nn::Dropout(0.1), torch::nn::Linear(64, drawn::kDigits));
  kolo::broadcast_parameters(*model, /*root=*/0);
  torch::optim::AdamW adamw(model->parameters(), 2e-3);
  kolo::DistributedOptimizer optimizer(adamw, *model);

  // Parameters, the optimizer's state, random numbers, and how many steps have been taken.
  std::int64_t first = 0;
  if (kolo::has_checkpoint(folder)) first = optimizer.load(folder).steps;
  if (kolo::rank() == 0) std::printf("begins with step %lld\n", static_cast<long long>(first));
  for (std::int64_t step = first; step < steps; ++step) {
    const auto batch = pictures_of(step);
    optimizer.zero_grad();
    torch::nn::functional::cross_entropy(model->forward(batch.data), batch.target).backward();
    optimizer.step();
    const bool is_preempted = kolo::preempted();
    if (is_preempted || (step + 1) % kStepsPerCheckpoint == 0) {
      optimizer.save(folder, {.keep_last = 2});
    }
    if (is_preempted) return kolo::kPreemptedStatus;
  }

  model->eval();
  const at::NoGradGuard no_gradients;
  const auto held_out = drawn::Pictures(drawn::Alphabet::Digits, 1'000'000, 500).range(0, 500);
  const double loss =
      torch::nn::functional::cross_entropy(model->forward(held_out.data), held_out.target)
          .item<double>();
  const std::string digest = digest_of(model);
  if (kolo::rank() == 0) std::printf("loss: %.6f\ndigest: %s\n", loss, digest.c_str());
  return 0;
}
