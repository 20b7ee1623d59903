#include "compression/options.hpp"

#include <limits>

#include <CLI/CLI.hpp>

#include "compression/cases.hpp"

namespace compression {
namespace {

constexpr int kLargest = 1 << 20;
constexpr int kDefaultSteps = 300;
constexpr double kSgdRate = 0.1;  // the peak, as gpt::Options has it for AdamW

/// For trying out the program rather than for comparing losses.
gpt::Options tiny_preset() {
  gpt::Options options;
  options.layers = 1;
  options.width = 64;
  options.heads = 2;
  options.context = 32;
  options.batch = 4;
  return options;
}

gpt::Options preset(const std::string& name) {
  gpt::Options options = name == "tiny"     ? tiny_preset()
                         : name == "medium" ? gpt::medium_preset()
                                            : gpt::Options();
  options.steps = kDefaultSteps;
  return options;
}

void add_training_options(CLI::App& app, Options& options) {
  const CLI::Range count(1, kLargest);
  // Parsed before all other options, wherever it is on the command line, so that they override it.
  app.add_option_function<std::string>(
         "--preset",
         [&options](const std::string& name) {
           options.preset = name;
           options.training = preset(name);
         },
         "the model: small (the default) and medium are those of train_gpt; tiny has 1 layer of "
         "width 64")
      ->trigger_on_parse()
      ->check(CLI::IsMember({"tiny", "small", "medium"}));
  app.add_option("--steps", options.training.steps, "training steps of each case")
      ->check(count)
      ->capture_default_str();
  app.add_option("--batch", options.training.batch, "windows of text of each rank in a step")
      ->check(count)
      ->capture_default_str();
  app.add_option("--optimizer", options.optimizer, "adamw, or sgd with momentum 0.9")
      ->check(CLI::IsMember({"adamw", "sgd"}))
      ->capture_default_str();
  app.add_option("--seed", options.training.seed, "of initial weights and batches")
      ->check(CLI::Range(0, std::numeric_limits<int>::max()))
      ->capture_default_str();
  app.add_option("--text", options.training.text,
                 "text files, or folders of them, to learn from; default: the handwritten C++ "
                 "headers of LibTorch")
      ->type_name("PATH");
}

}  // namespace

std::optional<examples::Exit> parse_options(int argc, const char* const* argv, Options& options) {
  options.training = preset(options.preset);
  CLI::App app(
      "Compares ways to compress gradients: trains one GPT with each, from the same weights and on "
      "the same text, and shows what that does to the validation loss, to the bytes that a rank "
      "sends in a step, and to the time of a step. The cases take steps in turns.\n",
      "compare_compression");
  add_training_options(app, options);
  app.add_option("--cases", options.cases,
                 "which to compare, separated by commas; 'none' always takes part; '+ef': with "
                 "error feedback; default: all")
      ->delimiter(',')
      ->check(CLI::IsMember(names_of_cases()));
  app.add_option("--rank", options.settings.rank, "of PowerSGD's approximations")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app.add_option("--start-step", options.settings.start_step, "the first that PowerSGD compresses")
      ->check(CLI::Range(0, kLargest))
      ->capture_default_str();
  app.add_option("--fraction", options.settings.fraction,
                 "of the elements of gradients that top_k and random_k send")
      ->check(CLI::Range(1e-6, 1.0))
      ->capture_default_str();
  app.add_option("--json", options.json, "write the results to this file too")->type_name("FILE");
  app.add_option("--svg", options.svg, "draw the results into this file")->type_name("FILE");
  const CLI::Option* const rate =
      app.add_option("--lr", options.training.learning_rate,
                     "peak learning rate; default: that of train_gpt, with sgd 0.1")
          ->check(CLI::Range(1e-9, 1e3));
  const std::optional<examples::Exit> exit = examples::parse_command_line(app, argc, argv);
  if (options.optimizer == "sgd" && rate->empty()) options.training.learning_rate = kSgdRate;
  return exit;
}

}  // namespace compression
