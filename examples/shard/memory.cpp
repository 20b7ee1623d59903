#include <algorithm>
#include <cstdio>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <ATen/Context.h>
#include <ATen/ops/randint.h>
#include <nlohmann/json.hpp>
#include <torch/optim/adamw.h>

#include "common/model.hpp"
#include "gpt/model.hpp"
#include "kolo/json_objects.hpp"
#include "kolo/kolo.hpp"
#include "shard/benchmark.hpp"
#include "shard/process_memory.hpp"

namespace shard {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kContext = 16;  // bytes; activations are negligible beside the model
constexpr int kHeadWidth = 64;
constexpr double kUnshardedBytes = 16;    // per parameter
constexpr double kMaxAboveFormula = 0.1;  // bytes per parameter
constexpr double kMaxPssDifference = 0.1;

/// Everything that trains, with one lifetime.
struct Training {
  explicit Training(const Options& options)
      : model(gpt::ModelOptions{.layers = options.layers,
                                .width = options.width,
                                .heads = options.width / kHeadWidth,
                                .context = kContext}),
        adamw(model->parameters(), torch::optim::AdamWOptions(1e-3)),
        optimizer(adamw, *model, {.shard = options.shard}),
        windows(at::randint(256, {1, kContext + 1}, at::TensorOptions(at::kLong))) {}

  void step() {
    optimizer.zero_grad();
    gpt::next_byte_loss(model, windows).backward();
    optimizer.step();
  }

  gpt::Gpt model;
  torch::optim::AdamW adamw;
  kolo::DistributedOptimizer optimizer;
  at::Tensor windows;
};

Json measure_this_rank(const Options& options) {
  at::manual_seed(1);  // the same on all ranks
  const std::size_t resident_before = resident_bytes();
  const std::size_t before = bytes_in_use();
  const auto peak_of = [&](const std::function<void()>& work) {
    return peak_during(work) - before;
  };
  std::optional<Training> training;
  const std::size_t peak_of_construction = peak_of([&] { training.emplace(options); });
  const std::size_t peak_of_first_step = peak_of([&] { training->step(); });
  training->step();
  const std::size_t peak_of_step = peak_of([&] { training->step(); });
  const kolo::TrainingReport report = training->optimizer.report();
  return {{"elements", examples::count_parameters(*training->model)},
          {"parameters", report.now.parameters},
          {"gradients", report.now.gradients},
          {"state", report.now.optimizer_state},
          {"buckets", report.now.buckets},
          {"total", report.now.total()},
          {"formula", report.expected.total()},
          {"peak_of_construction", peak_of_construction},
          {"peak_of_first_step", peak_of_first_step},
          {"peak_of_step", peak_of_step},
          {"pss_growth", resident_bytes() - resident_before},
          {"bytes_sent", report.sent_per_step},
          {"bytes_to_send", report.expected_sent_per_step}};
}

double most(const std::vector<Json>& ranks, const char* key) {
  double most = 0;
  for (const Json& rank : ranks) most = std::max(most, rank[key].get<double>());
  return most;
}

double sum(const std::vector<Json>& ranks, const char* key) {
  double sum = 0;
  for (const Json& rank : ranks) sum += rank[key].get<double>();
  return sum;
}

/// Bytes are per parameter, on the rank that has most.
Json summarize(kolo::Shard shard, const std::vector<Json>& ranks) {
  const double elements = ranks.front()["elements"];
  return {{"shard", kolo::name_of(shard)},
          {"parameters", elements},
          {"live", (most(ranks, "total") - most(ranks, "buckets")) / elements},
          {"formula", most(ranks, "formula") / elements},
          {"buckets", most(ranks, "buckets") / elements},
          {"pss_ratio", sum(ranks, "pss_growth") / sum(ranks, "total")},
          {"bytes_sent_ratio", most(ranks, "bytes_sent") / most(ranks, "bytes_to_send")},
          {"ranks", ranks}};
}

void print(const Json& memory, const std::vector<Json>& ranks) {
  const auto share = [&](const char* key) {
    return most(ranks, key) / memory["parameters"].get<double>();
  };
  const double live = memory["live"];
  const double with_buckets = live + share("buckets");
  std::printf(
      "GPT, %.0f parameters in fp32, AdamW, %zu ranks, shard %s; bytes per parameter on the rank "
      "that has most, as the optimizer reports them:\n",
      memory["parameters"].get<double>(), ranks.size(), memory["shard"].get<std::string>().c_str());
  std::printf("  %-25s %7.3f\n", "parameters", share("parameters"));
  std::printf("  %-25s %7.3f\n", "gradients", share("gradients"));
  std::printf("  %-25s %7.3f\n", "optimizer state", share("state"));
  std::printf("  %-25s %7.3f, by the formula %.3f; %.1f %% of %.0f\n", "together", live,
              memory["formula"].get<double>(), 100 * live / kUnshardedBytes, kUnshardedBytes);
  std::printf("  %-25s %7.3f\n", "buckets", share("buckets"));
  std::printf("  %-25s %7.3f, %.1f %% of %.0f\n", "with them", with_buckets,
              100 * with_buckets / kUnshardedBytes, kUnshardedBytes);
  std::printf("  %-25s %7.3f\n", "peak while it is made", share("peak_of_construction"));
  std::printf("  %-25s %7.3f\n", "peak of the first step", share("peak_of_first_step"));
  std::printf("  %-25s %7.3f\n", "peak of the third step", share("peak_of_step"));
  std::printf("  %-25s %7.3f x what is reported, over all ranks\n", "by the kernel's count",
              memory["pss_ratio"].get<double>());
  std::printf("a rank sends %.2f MB a step, %.4f x what it must\n", most(ranks, "bytes_sent") / 1e6,
              memory["bytes_sent_ratio"].get<double>());
}

/// How the figures miss their bounds; empty if they do not.
std::string find_misses(const Json& memory) {
  std::string misses;
  const auto expect = [&](double value, double least, double most, const char* what) {
    if (value >= least && value <= most) return;
    misses += "MISSED: " + std::to_string(value) + ' ' + what + ", not " + std::to_string(least) +
              " to " + std::to_string(most) + '\n';
  };
  expect(memory["live"], 0, memory["formula"].get<double>() + kMaxAboveFormula,
         "bytes per parameter without buckets");
  expect(memory["pss_ratio"], 1 - kMaxPssDifference, 1 + kMaxPssDifference,
         "times what is reported");
  expect(memory["bytes_sent_ratio"], 0, kMaxBytesSentRatio, "times the bytes that must be sent");
  return misses;
}

}  // namespace

Json measure_memory(const Options& options, bool& is_met) {
  const std::vector<Json> ranks =
      kolo::allgather_object(measure_this_rank(options), {.name = "memory"});
  const Json memory = summarize(*options.shard, ranks);
  const std::string misses = find_misses(memory);
  if (kolo::rank() == 0) {
    print(memory, ranks);
    std::fputs(misses.c_str(), stdout);
    std::fflush(stdout);
  }
  is_met = misses.empty();
  return memory;
}

}  // namespace shard
