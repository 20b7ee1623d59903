#include "gpt/options.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include <CLI/CLI.hpp>

namespace gpt {
namespace {

constexpr int kLargest = 1 << 20;  // of any size or count: a guard against typing errors

std::string accept_learning_rate(const std::string& text) {
  double value = 0;
  const bool is_number = CLI::detail::lexical_cast(text, value);
  return is_number && std::isfinite(value) && value > 0 ? "" : "must be a number above 0: " + text;
}

void add_model_options(CLI::App& app, Options& options) {
  const CLI::Range size(1, kLargest);
  app.add_option("--layers", options.layers, "blocks of the model")->check(size);
  app.add_option("--width", options.width, "embedding width; a multiple of --heads")->check(size);
  app.add_option("--heads", options.heads, "attention heads")->check(size);
  app.add_option("--context", options.context, "bytes that the model sees before the next one")
      ->check(size);
}

void add_training_options(CLI::App& app, Options& options) {
  const CLI::Range count(1, kLargest);
  app.add_option("--steps", options.steps, "training steps")->check(count);
  app.add_option("--batch", options.batch,
                 "windows of text of each rank in a step; N ranks with B/N each train like one "
                 "rank with B")
      ->check(count);
  app.add_option("--optimizer", options.optimizer,
                 "adamw, adamw8bit (state of 8 bits), or muon for the matrices of blocks")
      ->check(CLI::IsMember({"adamw", "adamw8bit", "muon"}));
  app.add_option("--lr", options.learning_rate, "peak learning rate")
      ->check(CLI::Validator(accept_learning_rate, ""));
  examples::add_device_option(app, options.device);
  examples::add_shard_option(app, options.shard);
  app.add_flag("--fused", options.fused, "use LibTorch's fused kernel for AdamW");
  app.add_option("--seed", options.seed, "of initial weights, batches and the sample")
      ->check(CLI::Range(0, std::numeric_limits<int>::max()));
  app.add_option("--compression", options.compression,
                 "how gradients are compressed when they are sent: none, fp16, int8, …");
}

void add_task_options(CLI::App& app, Options& options) {
  app.add_option(
         "--text", options.text,
         "text files, or folders of them, to learn from; default: the handwritten C++ headers "
         "of LibTorch")
      ->type_name("PATH");
  app.add_option("--json", options.json, "write the results to this file too")->type_name("FILE");
  auto* require_loss =
      app.add_option(
             "--require-loss", options.require_loss,
             "fail unless the validation loss is at most this many nats/byte, and below the "
             "trigram entropy")
          ->type_name("NATS");
  examples::add_efficiency_option(app, options.efficiency)->excludes(require_loss);
}

void add_checkpoint_options(CLI::App& app, Options& options) {
  auto* save = app.add_option("--save", options.save,
                              "folder for checkpoints: saves one after the last step, keeps two")
                   ->type_name("FOLDER");
  app.add_option("--save-every", options.save_every,
                 "also save a checkpoint after every STEPS steps")
      ->needs(save)
      ->check(CLI::Range(1, kLargest));
  app.add_option("--load", options.load,
                 "resume from a checkpoint, or from the newest in a folder, of any number of ranks "
                 "and any --shard; all ranks together must take as many windows in a step as "
                 "before (--batch). Or start with the weights in a file: *.safetensors, or one of "
                 "torch::save")
      ->type_name("PATH");
  app.add_option("--export", options.export_file,
                 "after the last step, write weights and optimizer state into one safetensors file")
      ->type_name("FILE");
}

}  // namespace

Options medium_preset() {
  Options options;
  options.layers = 6;
  options.width = 384;
  options.heads = 6;
  options.context = 128;
  options.batch = 8;
  options.learning_rate = 1e-3;
  return options;
}

std::variant<Options, examples::Exit> parse_options(int argc, const char* const* argv) {
  Options options;
  CLI::App app(
      "Trains a byte-level GPT on text, on as many processes as mpirun starts.\n"
      "The model is tested on windows of the last tenth of the text that do not occur in "
      "the rest.\n",
      "train_gpt");
  // Parsed before all other options, wherever it is on the command line, so that they override it.
  app.add_option_function<std::string>(
         "--preset",
         [&options](const std::string& name) {
           if (name == "medium") options = medium_preset();
         },
         "small (the default): 3 layers, width 128, 4 heads, context 64, batch 32, 1000 steps, "
         "learning rate 0.003; medium: 6 layers, width 384, 6 heads, context 128, batch 8, 1000 "
         "steps, learning rate 0.001")
      ->trigger_on_parse()
      ->check(CLI::IsMember({"small", "medium"}));
  add_model_options(app, options);
  add_training_options(app, options);
  add_task_options(app, options);
  add_checkpoint_options(app, options);
  if (const auto exit = examples::parse_command_line(app, argc, argv)) return *exit;
  if (options.width % options.heads != 0) {
    return examples::Exit{2, "--width " + std::to_string(options.width) +
                                 " is not a multiple of --heads " + std::to_string(options.heads) +
                                 "\nRun with --help for more information.\n"};
  }
  return options;
}

double learning_rate(const Options& options, int step) {
  const int warm_up = std::max(1, options.steps / 20);
  if (step < warm_up) return options.learning_rate * (step + 1) / warm_up;
  const double progress = static_cast<double>(step - warm_up) / (options.steps - warm_up);
  return options.learning_rate * 0.5 * (1 + std::cos(std::numbers::pi * progress));
}

}  // namespace gpt
