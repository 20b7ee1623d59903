// Compares the modes of sharding: memory, time, and the largest model within a memory budget.
//
//   mpirun -np 2 compare_sharding --help
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "common/agreement.hpp"
#include "common/command_line.hpp"
#include "common/freed_memory.hpp"
#include "common/output_file.hpp"
#include "common/resources.hpp"
#include "compare/models.hpp"
#include "compare/report.hpp"
#include "kolo/kolo.hpp"
#include "shard/process_memory.hpp"
#include "shard/race.hpp"

namespace {

using Json = nlohmann::ordered_json;

constexpr int kWrongInput = 2;
constexpr int kSteps = 3;  // the first lays buckets out, the second settles

struct Options {
  std::vector<std::string> models{"transformer", "convnet", "speech"};
  compare::Size size;                ///< of the models for memory and time
  std::size_t budget = 128'000'000;  ///< bytes of a rank, for the largest model
  int rounds = 15;                   ///< measured steps of each mode
  int warm_up = 3;                   ///< uncounted steps of each mode before
  std::filesystem::path json;
  std::filesystem::path svg;
};

/// Sets `options`, or returns how to exit after --help or an error.
std::optional<examples::Exit> parse_options(int argc, char** argv, Options& options) {
  CLI::App app(
      "Compares the modes of sharding, on models of three kinds that AdamW trains: the memory that "
      "a rank needs, the time of a step, and the largest model within a budget of memory.\n"
      "Memory is the most that a rank has in use at the same time, from the construction of the "
      "model through three steps: parameters, gradients, optimizer state, buffers, activations. "
      "What the ranks of a node share counts in equal parts.\n",
      "compare_sharding");
  const CLI::Range count(1, 1 << 20);
  app.add_option("--model", options.models,
                 "what to train: a GPT, a residual network of convolutions with BatchNorm, an LSTM "
                 "over frames of sound")
      ->check(CLI::IsMember({"transformer", "convnet", "speech"}))
      ->capture_default_str();
  app.add_option("--blocks", options.size.blocks, "depth of the models for memory and time")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app.add_option("--width", options.size.width, "width of all models, a multiple of 64")
      ->check(CLI::Range(1, 1 << 14) & examples::multiple_of(64))
      ->capture_default_str();
  app.add_option("--batch", options.size.batch, "samples of each rank in a step")
      ->check(CLI::Range(2, 1 << 16))
      ->capture_default_str();
  app.add_option("--budget", options.budget,
                 "bytes of a rank, such as 512MB, for the largest model that can be trained; it "
                 "has as many blocks as fit")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/true))
      ->capture_default_str();
  app.add_option("--rounds", options.rounds, "steps of each mode that are timed, in turns")
      ->check(count)
      ->capture_default_str();
  app.add_option("--warmup", options.warm_up, "steps of each mode at the start, not counted")
      ->check(count)
      ->capture_default_str();
  app.add_option("--json", options.json, "write the results to this file too")->type_name("FILE");
  app.add_option("--svg", options.svg, "draw the results into this file")->type_name("FILE");
  return examples::parse_command_line(app, argc, argv);
}

/// On rank 0, to standard error: tables go to standard output.
void show_progress(const std::string& model, kolo::Shard shard, const std::string& text) {
  if (kolo::rank() != 0) return;
  std::fprintf(stderr, "%s, %s: %s\n", model.c_str(), std::string(kolo::name_of(shard)).c_str(),
               text.c_str());
}

std::string megabytes(double bytes) {
  return std::to_string(static_cast<long>(bytes / 1e6)) + " MB";
}

Json time_of_modes(const std::string& model, const Options& options,
                   const std::vector<kolo::Shard>& shards) {
  std::vector<shard::Case> cases;
  for (const kolo::Shard shard : shards) {
    const auto training = std::make_shared<compare::Training>(model, options.size, shard);
    cases.push_back(
        {shard, training->parameters(), [training] { training->step(); },
         [training] { return static_cast<double>(training->report().expected_sent_per_step); }});
  }
  show_progress(model, shards.front(),
                "and the others take " + std::to_string(options.warm_up + options.rounds) +
                    " steps in turns");
  shard::race(cases, options.warm_up, options.rounds);
  Json modes = Json::array();
  for (const shard::Case& timed : cases) modes.push_back(shard::judge(timed, cases.front()));
  return modes;
}

/// Trains a new model for three steps.
compare::MemoryUse measure_memory(const std::string& model, const compare::Size& size,
                                  kolo::Shard shard) {
  const auto before = static_cast<double>(shard::bytes_in_use());
  const auto peak_of = [&](const std::function<void()>& work) {
    return examples::largest_over_ranks(static_cast<double>(shard::peak_during(work)) - before);
  };
  compare::MemoryUse use;
  std::optional<compare::Training> training;
  use.construction_bytes = peak_of([&] { training.emplace(model, size, shard); });
  use.step_bytes = peak_of([&] {
    for (int step = 0; step < kSteps; ++step) training->step();
  });
  use.parameters = training->parameters();
  return use;
}

compare::Largest largest_of(const std::string& model, const Options& options, kolo::Shard shard) {
  return compare::find_largest(
      [&](int blocks) {
        compare::Size size = options.size;
        size.blocks = blocks;
        const compare::MemoryUse use = measure_memory(model, size, shard);
        show_progress(model, shard,
                      std::to_string(blocks) + " blocks need " + megabytes(use.peak_bytes()));
        return use;
      },
      options.budget);
}

Json measure(const std::string& model, const Options& options) {
  const std::vector<kolo::Shard> shards = shard::all_modes();
  measure_memory(model, options.size, shards.front());  // LibTorch keeps buffers of its own
  std::vector<compare::MemoryUse> uses;
  for (const kolo::Shard shard : shards) {
    uses.push_back(measure_memory(model, options.size, shard));
    show_progress(model, shard, megabytes(uses.back().peak_bytes()));
  }
  Json modes = time_of_modes(model, options, shards);
  double none_parameters = 0;
  for (std::size_t i = 0; i < shards.size(); ++i) {
    const compare::Largest largest = largest_of(model, options, shards[i]);
    const auto parameters = static_cast<double>(largest.use.parameters);
    if (i == 0) none_parameters = parameters;
    modes[i].update({{"construction_bytes", uses[i].construction_bytes},
                     {"step_bytes", uses[i].step_bytes},
                     {"peak_bytes", uses[i].peak_bytes()},
                     {"memory_to_none", uses[i].peak_bytes() / uses[0].peak_bytes()},
                     {"largest_blocks", largest.blocks},
                     {"largest_parameters", largest.use.parameters},
                     {"largest_bytes", largest.use.peak_bytes()},
                     {"largest_to_none", none_parameters > 0 ? parameters / none_parameters : 0}});
  }
  return {{"model", model},
          {"ranks", kolo::size()},
          {"parameters", uses.front().parameters},
          {"blocks", options.size.blocks},
          {"width", options.size.width},
          {"batch", options.size.batch},
          {"budget_bytes", options.budget},
          {"rounds", options.rounds},
          {"modes", std::move(modes)}};
}

}  // namespace

int main(int argc, char** argv) {
  kolo::Runtime runtime;
  examples::share_cores(runtime.local_size());
  examples::keep_freed_memory();
  Options options;
  if (const auto exit = parse_options(argc, argv, options)) {
    return examples::leave(*exit, runtime.rank() == 0);
  }
  const bool is_alone = runtime.size() == 1;
  if (!examples::all_ranks_succeeded(
          is_alone ? "one rank has nothing to shard; run it with mpirun -np 2" : "")) {
    return kWrongInput;
  }
  examples::OutputFile json(runtime.rank() == 0 ? options.json : "");
  examples::OutputFile svg(runtime.rank() == 0 ? options.svg : "");
  if (!examples::all_ranks_succeeded(json.error() + svg.error())) return kWrongInput;

  Json models = Json::array();
  for (const std::string& model : options.models) {
    models.push_back(measure(model, options));
    if (runtime.rank() == 0) std::fputs(compare::to_table(models.back()).c_str(), stdout);
    std::fflush(stdout);
  }
  if (json.is_wanted()) json.write(models.dump(2) + '\n');
  if (svg.is_wanted()) svg.write(compare::to_svg(models));
  return 0;
}
