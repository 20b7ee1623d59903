#include "shard/options.hpp"

#include <CLI/CLI.hpp>

namespace shard {
namespace {

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

}  // namespace

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

}  // namespace shard
