// Time and memory of sharded training, compared with training without sharding.
//
//   mpirun -np 2 shard_benchmark --help
#include <optional>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "common/agreement.hpp"
#include "common/command_line.hpp"
#include "common/freed_memory.hpp"
#include "common/output_file.hpp"
#include "common/resources.hpp"
#include "kolo/kolo.hpp"
#include "shard/benchmark.hpp"

namespace {

using shard::Options;

constexpr int kWrongInput = 2;
constexpr int kMaxCount = 1 << 20;

void add_time_options(CLI::App& app, Options& options) {
  app.add_option("--model", options.models, "time: what to train, AdamW for GPT, SGD for ResNet-50")
      ->check(CLI::IsMember({"gpt-medium", "resnet50"}))
      ->capture_default_str();
  app.add_option("--image", options.image, "time: height and width of ResNet-50's images in pixels")
      ->check(CLI::Range(32, 4096))
      ->capture_default_str();
  app.add_option("--batch", options.batch, "time: images of each rank in a step")
      ->check(CLI::Range(2, kMaxCount))
      ->capture_default_str();
  app.add_option("--rounds", options.rounds, "time: steps of each mode; saving: checkpoints")
      ->check(CLI::Range(1, kMaxCount))
      ->capture_default_str();
  app.add_option("--warmup", options.warm_up, "time: steps of each mode at the start, not counted")
      ->check(CLI::Range(1, kMaxCount))
      ->capture_default_str();
  app.add_flag("--watch", options.watch,
               "time: instead of the modes, none with and without what Full does to see which "
               "operators use parameters where it gathers them; nothing is gathered")
      ->excludes("--memory")
      ->excludes("--checkpoint");
}

/// Sets `options`, or returns how to exit after --help or an error.
std::optional<examples::Exit> parse_options(int argc, char** argv, Options& options) {
  CLI::App app(
      "Measures sharded training: the time of a step in each mode, relative to none; or with "
      "--memory the memory of a rank in one mode; or with --checkpoint the time to save.\n"
      "Exit status 1: more bytes were sent, or more memory was used, than expected.\n",
      "shard_benchmark");
  app.add_flag("--memory", options.memory, "instead of time, measure memory");
  app.add_option("--checkpoint", options.checkpoint,
                 "instead of time, measure saving into this folder, which is made")
      ->type_name("FOLDER")
      ->excludes("--memory");
  app.add_option("--json", options.json, "write the results to this file too")->type_name("FILE");

  add_time_options(app, options);
  examples::add_shard_option(app, options.shard);
  app.add_option("--layers", options.layers, "memory: blocks of the GPT")
      ->check(CLI::Range(1, kMaxCount))
      ->capture_default_str();
  app.add_option("--width", options.width, "memory: width of the GPT, a multiple of 64")
      ->check(CLI::Range(1, 1 << 20) & examples::multiple_of(64))
      ->capture_default_str();
  return examples::parse_command_line(app, argc, argv);
}

}  // namespace

int main(int argc, char** argv) {
  kolo::Runtime runtime;
  examples::share_cores(runtime.local_size());
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
  if (!examples::all_ranks_succeeded(json.error())) return kWrongInput;

  bool is_met = false;
  nlohmann::ordered_json results;
  if (options.checkpoint) {
    results = shard::measure_saving(options, is_met);
  } else if (options.memory) {
    if (!options.shard) options.shard = kolo::shard_named(runtime.config().shard);
    results = shard::measure_memory(options, is_met);
  } else {
    examples::keep_freed_memory();
    results = shard::measure_speed(options, is_met);
  }
  if (json.is_wanted()) json.write(results.dump(2) + '\n');
  return is_met ? 0 : 1;
}
