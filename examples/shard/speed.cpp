#include "shard/speed.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <ATen/Context.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <nlohmann/json.hpp>
#include <torch/optim/sgd.h>

#include "common/agreement.hpp"
#include "common/parameters.hpp"
#include "common/statistics.hpp"
#include "gpt/training.hpp"
#include "kolo/kolo.hpp"
#include "kolo/shared_tensor.hpp"
#include "resnet/resnet50.hpp"
#include "shard/wire.hpp"

namespace shard {
namespace {

/// A model and all that trains it.
template <class Model>
struct Training {
  Training(Model its_model, std::unique_ptr<torch::optim::Optimizer> its_optimizer,
           kolo::Shard shard)
      : model(std::move(its_model)),
        inner(std::move(its_optimizer)),
        optimizer(*inner, *model, {.shard = shard}) {}

  Model model;
  std::unique_ptr<torch::optim::Optimizer> inner;
  kolo::DistributedOptimizer optimizer;
};

/// One mode in the race.
struct Case {
  kolo::Shard shard;
  std::int64_t parameters;
  std::function<void()> step;
  std::vector<double> step_ms{};
  std::vector<double> step_bytes{};
};

Case gpt_medium(kolo::Shard shard) {
  const gpt::Options options = gpt::medium_preset();
  gpt::Gpt model = gpt::make_model(options);
  auto adamw = gpt::make_optimizer(model, options);
  const auto training =
      std::make_shared<Training<gpt::Gpt>>(std::move(model), std::move(adamw), shard);
  const at::Tensor windows =
      at::randint(256, {options.batch, options.context + 1}, at::TensorOptions(at::kLong));
  return {shard, examples::count_parameters(*training->model),
          [=] { gpt::train_step(training->model, training->optimizer, windows); }};
}

Case resnet50(kolo::Shard shard, const Options& options) {
  at::manual_seed(1);  // the same on all ranks
  resnet::ResNet50 model;
  auto sgd = std::make_unique<torch::optim::SGD>(model->parameters(),
                                                 torch::optim::SGDOptions(0.01).momentum(0.9));
  const auto training =
      std::make_shared<Training<resnet::ResNet50>>(std::move(model), std::move(sgd), shard);
  const at::Tensor images = at::randn({options.batch, 3, options.image, options.image});
  const at::Tensor classes = at::randint(1000, {options.batch}, at::TensorOptions(at::kLong));
  return {shard, examples::count_parameters(*training->model), [=] {
            training->optimizer.zero_grad();
            at::cross_entropy_loss(training->model->forward(images), classes).backward();
            training->optimizer.step();
          }};
}

void take_turn(Case& bench_case) {
  using Clock = std::chrono::steady_clock;
  kolo::barrier();
  const std::uint64_t bytes_before = bytes_sent();
  const auto start = Clock::now();
  bench_case.step();
  const std::chrono::duration<double, std::milli> time = Clock::now() - start;
  bench_case.step_bytes.push_back(static_cast<double>(bytes_sent() - bytes_before));
  bench_case.step_ms.push_back(examples::mean_over_ranks(time.count()));
}

void run(std::vector<Case>& cases, const Options& options) {
  std::mt19937 shuffler;  // with the same seed on all ranks
  std::vector<Case*> order;
  for (Case& bench_case : cases) order.push_back(&bench_case);
  for (int round = 0; round < options.warm_up + options.rounds; ++round) {
    if (round == options.warm_up) {
      for (Case& bench_case : cases) {
        bench_case.step_ms.clear();
        bench_case.step_bytes.clear();
      }
    }
    std::ranges::shuffle(order, shuffler);
    for (Case* const bench_case : order) take_turn(*bench_case);
  }
}

nlohmann::ordered_json judge(const Case& bench_case, const Case& none) {
  std::vector<double> ratios;
  for (std::size_t round = 0; round < none.step_ms.size(); ++round) {
    ratios.push_back(bench_case.step_ms[round] / none.step_ms[round]);
  }
  const examples::Interval interval = examples::median_interval(ratios);
  const double sent = examples::mean_over_ranks(examples::median(bench_case.step_bytes));
  return {{"shard", kolo::name_of(bench_case.shard)},
          {"step_ms_median", examples::median(bench_case.step_ms)},
          {"ratio_to_none", examples::median(ratios)},
          {"ratio_low", interval.low},
          {"ratio_high", interval.high},
          {"bytes_sent_per_step", sent},
          {"bytes_sent_ratio",
           sent / least_bytes_sent(bench_case.shard, bench_case.parameters, kolo::size())}};
}

void print(const nlohmann::ordered_json& result) {
  std::printf("%-9s  %8.1f ms  %.3f of none (95 %% interval %.3f to %.3f)  %8.2f MB sent, %.4f x\n",
              result["shard"].get<std::string>().c_str(), result["step_ms_median"].get<double>(),
              result["ratio_to_none"].get<double>(), result["ratio_low"].get<double>(),
              result["ratio_high"].get<double>(), result["bytes_sent_per_step"].get<double>() / 1e6,
              result["bytes_sent_ratio"].get<double>());
}

nlohmann::ordered_json measure(const std::string& model, const Options& options) {
  std::vector<Case> cases;
  for (const kolo::Shard shard : {kolo::Shard::None, kolo::Shard::Optimizer, kolo::Shard::Gradients,
                                  kolo::Shard::Full}) {
    cases.push_back(model == "resnet50" ? resnet50(shard, options) : gpt_medium(shard));
  }
  run(cases, options);

  const std::int64_t parameters = cases.front().parameters;
  if (kolo::rank() == 0) {
    std::printf(
        "%s, %lld parameters, %d ranks: medians of %d steps; sent by a rank, and x what it must\n",
        model.c_str(), static_cast<long long>(parameters), kolo::size(), options.rounds);
  }
  nlohmann::ordered_json modes = nlohmann::ordered_json::array();
  for (const Case& bench_case : cases) {
    modes.push_back(judge(bench_case, cases.front()));
    if (kolo::rank() == 0) print(modes.back());
  }
  std::fflush(stdout);
  return {{"model", model},
          {"ranks", kolo::size()},
          {"parameters", parameters},
          {"rounds", options.rounds},
          {"modes", std::move(modes)}};
}

}  // namespace

nlohmann::ordered_json measure_speed(const Options& options, bool& is_met) {
  is_met = true;
  nlohmann::ordered_json results = nlohmann::ordered_json::array();
  for (const std::string& model : options.models) {
    results.push_back(measure(model, options));
    for (const auto& mode : results.back()["modes"]) {
      if (mode["bytes_sent_ratio"].get<double>() > kMostBytesSent) is_met = false;
    }
  }
  return results;
}

}  // namespace shard
