#include "compare/options.hpp"

#include <CLI/CLI.hpp>

namespace compare {

std::optional<examples::Exit> parse_options(int argc, char** argv, Options& options) {
  CLI::App app(
      "Compares the modes of sharding, on models of three kinds that AdamW trains: the memory that "
      "a rank needs, the time of a step, and the largest model within a budget of memory.\n"
      "Memory is what LibTorch's allocator and Kolo's shared segments hold at the same time, at "
      "most, from the construction of the model through three steps: parameters, gradients, "
      "optimizer state, buffers, activations. What the ranks of a node share counts once.\n",
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

}  // namespace compare
