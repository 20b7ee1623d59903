// Learns to classify drawn digits. If it is killed and restarted on any number of ranks, it resumes
// from its newest checkpoint: mpirun -np 2 train_accelerated --folder checkpoints
#include <CLI/CLI.hpp>
#include <torch/torch.h>

#include "common/command_line.hpp"
#include "common/model.hpp"
#include "common/resources.hpp"
#include "drawn/pictures.hpp"
#include "kolo/extras/accelerator.hpp"

namespace {

torch::nn::Sequential make_model() {
  torch::manual_seed(1);
  return torch::nn::Sequential(torch::nn::Flatten(), torch::nn::Linear(28 * 28, 64),
                               torch::nn::ReLU(), torch::nn::Linear(64, 10));
}

/// The number of digits that the model classifies correctly. Every rank evaluates its share.
template <class Batches>
double count_right(torch::nn::Sequential& model, kolo::Accelerator& accelerator, Batches& batches) {
  const torch::NoGradGuard no_gradients;
  at::Tensor right = torch::zeros({}, torch::kLong);
  for (auto& batch : batches) {
    const at::Tensor hits = model->forward(batch.data).argmax(1).eq(batch.target);
    right += accelerator.gather_for_metrics(hits).sum();
  }
  return right.item<double>();
}

}  // namespace

int main(int argc, char** argv) {
  kolo::Accelerator accelerator({.gradient_accumulation_steps = 2, .progress_bar = true});
  examples::share_cores(kolo::local_size());
  std::string folder, exported;
  std::int64_t epochs = 4, save_every = 20;
  double enough = 101;
  CLI::App app("Learns to read drawn digits, and goes on after a restart.\n", "train_accelerated");
  app.add_option("--folder", folder, "of the checkpoints")->required();
  app.add_option("--epochs", epochs, "passes over the digits")->capture_default_str();
  app.add_option("--save-every", save_every, "steps between checkpoints")->capture_default_str();
  app.add_option("--stop-at", enough, "accuracy in % after which training stops early");
  app.add_option("--export", exported, "write all parameters to this safetensors file at the end");
  const auto exit = examples::parse_command_line(app, argc, argv);
  if (exit) return examples::leave(*exit, kolo::rank() == 0);

  torch::nn::Sequential model = make_model();
  drawn::Pictures known(drawn::Alphabet::Digits, /*first=*/0, /*count=*/2000);
  drawn::Pictures unknown(drawn::Alphabet::Digits, /*first=*/1'000'000, /*count=*/500);
  const torch::data::transforms::Stack<> stack;
  auto batches = accelerator.prepare(
      *model, torch::optim::SGD(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9)),
      known.map(stack), {.batch_size = 24}, [](std::int64_t step) { return std::pow(0.99, step); });
  auto held_out = accelerator.batches(unknown.map(stack), {.batch_size = 100});
  accelerator.load_state(folder);  // does nothing on the first start
  for (const std::int64_t epoch : accelerator.epochs(epochs)) {
    for (auto& batch : batches) {
      accelerator.backward(
          [&] { return torch::cross_entropy_loss(model->forward(batch.data), batch.target); });
      accelerator.clip_grad_norm_(1.0);
      const bool is_due = accelerator.step() && accelerator.steps() % save_every == 0;
      if (is_due) accelerator.save_state(folder);
    }
    const double accuracy = count_right(model, accelerator, held_out) / 5;
    accelerator.print("epoch ", epoch + 1, ": accuracy ", accuracy, " % of 500");
    if (accelerator.should_stop(accuracy >= enough)) break;
  }
  if (!exported.empty()) accelerator.optimizer().save_full_state(exported);
  accelerator.print("digest: ", examples::digest_of_parameters(*model).hex());
}
