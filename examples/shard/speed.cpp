#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/Context.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <nlohmann/json.hpp>
#include <torch/optim/sgd.h>

#include "common/model.hpp"
#include "gpt/training.hpp"
#include "kolo/kolo.hpp"
#include "resnet/resnet50.hpp"
#include "shard/benchmark.hpp"
#include "shard/race.hpp"
#include "train/sharding/gathered_units.hpp"
#include "train/sharding/operator_watch.hpp"
#include "train/tensors/parameter_storage.hpp"

namespace shard {
namespace {

/// Watches operators for the model's parameters from now on, as Shard::Full does if it gathers
/// parameters on use. Here parameters stay in place, and nothing is gathered.
void watch_parameters(const torch::nn::Module& model) {
  using kolo::train::GatheredUnits;
  GatheredUnits::Part part{.shard = at::empty({0}), .begin = 0, .members = {}};
  auto& memory = *new std::vector<at::DataPtr>;  // never freed, as storages refer to it
  for (const at::Tensor& parameter : model.parameters()) {
    part.members.push_back({parameter.storage(), 0});
    memory.push_back(parameter.storage().unsafeGetStorageImpl()->set_data_ptr(at::DataPtr()));
  }
  const auto units = std::make_shared<GatheredUnits>(
      std::vector<GatheredUnits::Unit>{{"parameters", {part}}},
      kolo::train::UnitSlots(1, 0, c10::Device(c10::kCPU)),
      kolo::OperationOptions{.process_set = &kolo::Runtime::current().world()}, "watched",
      std::make_shared<kolo::train::UnitCalls>("watched"));
  units->pause(true);
  for (std::size_t i = 0; i < memory.size(); ++i) {
    kolo::train::bind_storage(part.members[i].storage, memory[i].get());
  }
  kolo::train::watch_operators(units);
}

/// A model and all that trains it.
template <class Model>
struct TimedTraining {
  TimedTraining(Model its_model, std::unique_ptr<torch::optim::Optimizer> its_optimizer,
                kolo::Shard shard)
      : model(std::move(its_model)),
        inner(std::move(its_optimizer)),
        optimizer(*inner, *model, {.shard = shard}) {}

  Model model;
  std::unique_ptr<torch::optim::Optimizer> inner;
  kolo::DistributedOptimizer optimizer;
};

double bytes_to_send(const kolo::DistributedOptimizer& optimizer) {
  return static_cast<double>(optimizer.report().expected_sent_per_step);
}

Case gpt_medium(kolo::Shard shard, const Options& benchmark) {
  const gpt::Options options = gpt::medium_preset();
  gpt::Gpt model = gpt::make_model(options);
  auto adamw = gpt::make_optimizer(model, options);
  const auto training =
      std::make_shared<TimedTraining<gpt::Gpt>>(std::move(model), std::move(adamw), shard);
  if (benchmark.watch) watch_parameters(*training->model);
  const at::Tensor windows =
      at::randint(256, {options.batch, options.context + 1}, at::TensorOptions(at::kLong));
  return {shard, examples::count_parameters(*training->model),
          [=] { gpt::train_step(training->model, training->optimizer, windows); },
          [=] { return bytes_to_send(training->optimizer); }};
}

Case resnet50(kolo::Shard shard, const Options& options) {
  at::manual_seed(1);  // the same on all ranks
  resnet::ResNet50 model;
  auto sgd = std::make_unique<torch::optim::SGD>(model->parameters(),
                                                 torch::optim::SGDOptions(0.01).momentum(0.9));
  const auto training =
      std::make_shared<TimedTraining<resnet::ResNet50>>(std::move(model), std::move(sgd), shard);
  if (options.watch) watch_parameters(*training->model);
  const at::Tensor images = at::randn({options.batch, 3, options.image, options.image});
  const at::Tensor classes = at::randint(1000, {options.batch}, at::TensorOptions(at::kLong));
  return {shard, examples::count_parameters(*training->model),
          [=] {
            training->optimizer.zero_grad();
            at::cross_entropy_loss(training->model->forward(images), classes).backward();
            training->optimizer.step();
          },
          [=] { return bytes_to_send(training->optimizer); }};
}

std::vector<Case> make_cases(const std::string& model, const Options& options) {
  std::vector<Case> cases;
  for (const kolo::Shard shard : options.watch ? std::vector{kolo::Shard::None} : all_modes()) {
    cases.push_back(model == "resnet50" ? resnet50(shard, options) : gpt_medium(shard, options));
  }
  if (options.watch) {  // the same training, since another has other addresses
    cases.push_back(cases.front());
    cases.back().is_watched = true;
  }
  return cases;
}

void print(const nlohmann::ordered_json& result) {
  const std::string mode =
      result["shard"].get<std::string>() + (result.value("is_watched", false) ? ", watched" : "");
  std::printf(
      "%-13s  %8.1f ms  %.3f of none (95 %% interval %.3f to %.3f)  %8.2f MB sent, %.4f x\n",
      mode.c_str(), result["step_ms_median"].get<double>(), result["ratio_to_none"].get<double>(),
      result["ratio_low"].get<double>(), result["ratio_high"].get<double>(),
      result["bytes_sent_per_step"].get<double>() / 1e6, result["bytes_sent_ratio"].get<double>());
}

nlohmann::ordered_json measure(const std::string& model, const Options& options) {
  std::vector<Case> cases = make_cases(model, options);
  race(cases, options.warm_up, options.rounds);

  const std::int64_t parameters = cases.front().parameters;
  if (kolo::rank() == 0) {
    std::printf(
        "%s, %lld parameters, %d ranks: medians of %d steps; sent by a rank, and x what it must\n",
        model.c_str(), static_cast<long long>(parameters), kolo::size(), options.rounds);
  }
  nlohmann::ordered_json modes = nlohmann::ordered_json::array();
  for (const Case& bench_case : cases) {
    modes.push_back(judge(bench_case, cases.front()));
    if (options.watch) modes.back()["is_watched"] = bench_case.is_watched;
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
      if (mode["bytes_sent_ratio"].get<double>() > kMaxBytesSentRatio) is_met = false;
    }
  }
  return results;
}

}  // namespace shard
