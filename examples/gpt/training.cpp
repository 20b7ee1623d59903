#include "gpt/training.hpp"

#include <algorithm>
#include <chrono>
#include <iostream>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/Context.h>
#include <torch/optim/adamw.h>

#include "common/agreement.hpp"
#include "common/resources.hpp"
#include "common/statistics.hpp"
#include "gpt/batch.hpp"
#include "gpt/checkpoints.hpp"
#include "kolo/extras/adamw_8bit.hpp"
#include "kolo/extras/muon.hpp"
#include "kolo/extras/progress_bar.hpp"
#include "kolo/runtime.hpp"

namespace gpt {
namespace {

constexpr std::size_t kLastSteps = 50;

double mean_of_last(const std::vector<double>& values) {
  const std::size_t count = std::min(values.size(), kLastSteps);
  return std::accumulate(values.end() - static_cast<std::ptrdiff_t>(count), values.end(), 0.0) /
         static_cast<double>(count);
}

/// A progress bar, only on rank 0.
std::optional<kolo::ProgressBar> make_progress(const Options& options, int first_step) {
  if (kolo::rank() != 0) return std::nullopt;
  const double tokens_per_step = 1.0 * options.batch * options.context * kolo::size();
  return std::make_optional<kolo::ProgressBar>(
      std::cout, kolo::output_is_terminal(), options.steps - first_step, tokens_per_step, "tokens");
}

kolo::ProcessSet::Metrics metrics() { return kolo::Runtime::current().world().metrics(); }

}  // namespace

Gpt make_model(const Options& options) {
  at::manual_seed(static_cast<std::uint64_t>(options.seed));
  Gpt model(ModelOptions{.layers = options.layers,
                         .width = options.width,
                         .heads = options.heads,
                         .context = options.context});
  model->to(examples::device_of_rank(options.device));
  return model;
}

std::unique_ptr<torch::optim::Optimizer> make_optimizer(Gpt& model, const Options& options) {
  if (options.optimizer == "adamw") {
    const auto adamw =
        torch::optim::AdamWOptions(options.learning_rate).betas({0.9, 0.99}).weight_decay(0.01);
    return std::make_unique<torch::optim::AdamW>(model->parameters(), adamw);
  }
  if (options.optimizer == "adamw8bit") {
    const auto adamw =
        kolo::AdamW8bitOptions(options.learning_rate).betas({0.9, 0.99}).weight_decay(0.01);
    return std::make_unique<kolo::AdamW8bit>(model->parameters(), adamw);
  }
  std::vector<at::Tensor> matrices;
  std::vector<at::Tensor> others;
  for (const auto& parameter : model->named_parameters()) {
    const bool is_of_block = parameter.key().starts_with("blocks.");
    (is_of_block && parameter->dim() == 2 ? matrices : others).push_back(*parameter);
  }
  const auto muon = kolo::MuonOptions(options.learning_rate)
                        .matches_adamw(true)
                        .betas({0.9, 0.99})
                        .weight_decay(0.01);
  return std::make_unique<kolo::Muon>(
      std::vector<torch::optim::OptimizerParamGroup>{
          {std::move(matrices), std::make_unique<kolo::MuonOptions>(muon)},
          {std::move(others),
           std::make_unique<kolo::MuonOptions>(kolo::MuonOptions(muon).orthogonalizes(false))}},
      muon);
}

Batches::Batches(const Options& options, std::string_view text)
    : rows_(options.batch),
      length_(static_cast<std::size_t>(options.context) + 1),
      text_(text),
      sampler_(text.size(), length_, static_cast<std::uint64_t>(options.seed)) {}

at::Tensor Batches::next() {
  return read_windows(text_, sampler_.next(kolo::rank(), kolo::size(), rows_), length_);
}

void Batches::skip(int steps) { sampler_.skip(steps, kolo::size(), rows_); }

double compute_gradients(Gpt& model, torch::optim::Optimizer& optimizer,
                         const at::Tensor& windows) {
  optimizer.zero_grad();
  const at::Tensor loss = next_byte_loss(model, windows);
  loss.backward();
  return loss.item<double>();
}

double train_step(Gpt& model, torch::optim::Optimizer& optimizer, const at::Tensor& windows) {
  const double loss = compute_gradients(model, optimizer, windows);
  optimizer.step();
  return loss;
}

TrainingResult train(Gpt& model, kolo::DistributedOptimizer& optimizer, const Options& options,
                     std::string_view text, int first_step) {
  using Clock = std::chrono::steady_clock;
  std::optional<kolo::ProgressBar> progress = make_progress(options, first_step);
  Batches batches(options, text);
  batches.skip(first_step);
  std::vector<double> losses;
  std::vector<double> step_ms;
  std::vector<double> step_bytes;
  std::uint64_t bytes_before = metrics().bytes_sent;
  const auto start = Clock::now();
  auto step_start = start;
  for (int step = first_step; step < options.steps; ++step) {
    for (auto& group : optimizer.param_groups()) {
      group.options().set_lr(learning_rate(options, step));
    }
    losses.push_back(train_step(model, optimizer, batches.next()));
    const auto now = Clock::now();
    step_ms.push_back(std::chrono::duration<double, std::milli>(now - step_start).count());
    const std::uint64_t bytes_after = metrics().bytes_sent;
    step_bytes.push_back(static_cast<double>(bytes_after - bytes_before));
    bytes_before = bytes_after;
    if (progress) {
      progress->update(step + 1 - first_step, losses.back(),
                       std::chrono::duration<double>(now - start).count());
    }
    save_if_due(optimizer, options, text, step + 1);
    step_start = Clock::now();
  }
  losses = examples::mean_over_ranks(std::move(losses));
  const double final_loss = mean_of_last(losses);
  return {.losses = std::move(losses),
          .final_loss = final_loss,
          .seconds = std::chrono::duration<double>(step_start - start).count(),
          .step_ms_median = examples::median(step_ms),
          .bytes_sent_per_step = examples::median(step_bytes),
          .metrics = metrics()};
}

}  // namespace gpt
