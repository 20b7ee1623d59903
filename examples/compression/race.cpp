#include "compression/race.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <functional>
#include <utility>

#include <nlohmann/json.hpp>
#include <torch/optim/sgd.h>

#include "common/agreement.hpp"
#include "common/statistics.hpp"
#include "kolo/collectives.hpp"
#include "kolo/runtime.hpp"

namespace compression {
namespace {

double bytes_sent() {
  return static_cast<double>(kolo::Runtime::current().world().metrics().bytes_sent);
}

std::unique_ptr<torch::optim::Optimizer> make_sgd(const gpt::Gpt& model, double learning_rate) {
  return std::make_unique<torch::optim::SGD>(model->parameters(),
                                             torch::optim::SGDOptions(learning_rate).momentum(0.9));
}

std::vector<double> from(const std::vector<double>& values, std::size_t first) {
  return {values.begin() + static_cast<std::ptrdiff_t>(first), values.end()};
}

}  // namespace

Training::Training(Case kind, const Options& options, std::string_view text)
    : kind_(std::move(kind)),
      options_(options.training),
      model_(gpt::make_model(options_)),
      inner_(options.optimizer == "sgd" ? make_sgd(model_, options_.learning_rate)
                                        : gpt::make_optimizer(model_, options_)),
      optimizer_(*inner_, *model_, kind_.optimizer),
      batches_(options_, text) {
  if (!kind_.power_sgd) return;
  power_sgd_.emplace(*kind_.power_sgd);
  optimizer_.register_bucket_hook(power_sgd_->hook());
}

void Training::step(int step) {
  using Clock = std::chrono::steady_clock;
  for (auto& group : optimizer_.param_groups()) {
    group.options().set_lr(gpt::learning_rate(options_, step));
  }
  const at::Tensor windows = batches_.next();
  kolo::barrier();
  const double before = bytes_sent();
  const auto start = Clock::now();
  gpt::train_step(model_, optimizer_, windows);
  step_ms_.push_back(std::chrono::duration<double, std::milli>(Clock::now() - start).count());
  step_bytes_.push_back(bytes_sent() - before);
}

Shapes Training::shapes() const {
  Shapes shapes;
  for (const at::Tensor& parameter : model_->parameters())
    shapes.push_back(parameter.sizes().vec());
  return shapes;
}

void race(std::vector<std::unique_ptr<Training>>& trainings, int steps) {
  const std::size_t count = trainings.size();
  for (int step = 0; step < steps; ++step) {
    for (std::size_t i = 0; i < count; ++i) {
      trainings[(static_cast<std::size_t>(step) + i) % count]->step(step);
    }
  }
}

nlohmann::ordered_json judge(Training& training, const Training& none, double loss,
                             double none_loss, std::size_t first_step) {
  const auto times = [&](const Training& of) {
    return examples::mean_over_ranks(from(of.step_ms(), first_step));
  };
  const std::vector<double> own = times(training);
  const std::vector<double> plain = times(none);
  std::vector<double> ratios(own.size());
  std::ranges::transform(own, plain, ratios.begin(), std::divides<>());
  const double sent = examples::median(from(training.step_bytes(), first_step));
  return {{"case", training.kind().name},
          {"validation_loss", loss},
          {"loss_difference_percent", 100 * (loss / none_loss - 1)},
          {"bytes_per_step", examples::mean_over_ranks(sent)},
          {"formula_bytes", training.kind().bytes(training.shapes(), kolo::size())},
          {"step_ms_median", examples::median(own)},
          {"ratio_to_none", examples::median(ratios)}};
}

}  // namespace compression
