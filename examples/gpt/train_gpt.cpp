// Trains a byte-level GPT on real text with as many processes as mpirun starts.
//
//   mpirun -np 2 train_gpt --help
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include <ATen/Context.h>
#include <nlohmann/json.hpp>

#include "common/agreement.hpp"
#include "common/digest.hpp"
#include "common/efficiency.hpp"
#include "common/freed_memory.hpp"
#include "common/model.hpp"
#include "common/output_file.hpp"
#include "common/resources.hpp"
#include "gpt/checkpoints.hpp"
#include "gpt/corpus.hpp"
#include "gpt/evaluation.hpp"
#include "gpt/evaluation_windows.hpp"
#include "gpt/ngram.hpp"
#include "gpt/options.hpp"
#include "gpt/report.hpp"
#include "gpt/sample.hpp"
#include "gpt/training.hpp"
#include "kolo/kolo.hpp"

namespace {

constexpr int kWrongInput = 2;
constexpr std::size_t kEvaluatedBytes = std::size_t{1} << 17;  // at most, of the held-out text
constexpr std::size_t kPromptBytes = 16;
constexpr std::size_t kSampleBytes = 400;

struct Files {
  gpt::Corpus corpus;
  gpt::EvaluationWindows windows;
  std::unique_ptr<examples::OutputFile> json;  // on rank 0, if a report is wanted
};

std::size_t window_bytes(const gpt::Options& options) {
  return static_cast<std::size_t>(options.context) + 1;  // the last byte is only a target
}

// Fails before the training rather than after it.
void require_writable(const examples::OutputFile& file) {
  if (!file.error().empty()) throw std::runtime_error(file.error());
}

Files open_files(const gpt::Options& options) {
  Files files;
  const std::size_t length = window_bytes(options);
  files.corpus = gpt::load_corpus(options.text.empty() ? gpt::torch_headers(KOLO_GPT_TEXT_FOLDER)
                                                       : gpt::text_files(options.text),
                                  length);
  files.windows = gpt::evaluation_windows(files.corpus.training, files.corpus.held_out, length,
                                          kEvaluatedBytes / length + 1);
  if (kolo::rank() > 0) return files;
  if (!options.save.empty()) {
    std::filesystem::create_directories(options.save);
    require_writable(examples::OutputFile(options.save / ".writable"));
  }
  require_writable(examples::OutputFile(options.export_file));
  if (!options.json.empty()) {
    files.json = std::make_unique<examples::OutputFile>(options.json);
    require_writable(*files.json);
  }
  return files;
}

// With different texts one rank could train on what another holds out.
std::string difference_from_rank_0(const gpt::Corpus& corpus) {
  examples::Digest digest;
  digest.add(corpus.training);
  digest.add(corpus.held_out);
  for (const int rank : examples::ranks_that_differ(digest.value())) {
    if (rank == kolo::rank())
      return "the text on rank " + std::to_string(rank) + " is not that on rank 0";
  }
  return "";
}

// Opens the options' files on every rank. If any rank fails, one prints the error, and all return
// nothing.
std::optional<Files> open_files_on_all_ranks(const gpt::Options& options) {
  Files files;
  std::string error;
  try {
    files = open_files(options);
  } catch (const std::runtime_error& failure) {
    error = failure.what();
  }
  if (!examples::all_ranks_succeeded(error)) return std::nullopt;
  if (!examples::all_ranks_succeeded(difference_from_rank_0(files.corpus))) return std::nullopt;
  return files;
}

void print_task(const gpt::Options& options, const Files& files, std::int64_t parameters) {
  const gpt::Corpus& corpus = files.corpus;
  const gpt::EvaluationWindows& windows = files.windows;
  std::cout << "GPT with " << parameters << " parameters: " << options.layers << " layers, width "
            << options.width << ", context " << options.context << "; " << kolo::size()
            << (kolo::size() == 1 ? " rank" : " ranks") << " with batch " << options.batch
            << (kolo::size() == 1 ? "\n" : " each\n") << "text: " << corpus.training.size()
            << " bytes to train on, " << corpus.held_out.size() << " held out";
  if (corpus.held_out_files > 0) {
    std::cout << " (" << corpus.training_files << " and " << corpus.held_out_files << " files)";
  }
  std::cout << "\ntested on: " << windows.starts.size() << " windows of " << window_bytes(options)
            << " bytes of the held-out text, of which " << windows.in_training
            << " occur in the training text (" << windows.left_out << " more do and are left out)"
            << std::endl;
}

// Collective. Complete only on rank 0, which alone counts n-grams.
gpt::Report judge(gpt::Gpt& model, const gpt::Options& options, const Files& files, int first_step,
                  const gpt::TrainingResult& training) {
  const gpt::Corpus& corpus = files.corpus;
  const std::vector<std::size_t>& starts = files.windows.starts;
  const examples::Digest digest = examples::digest_of_parameters(*model);
  const double tokens_per_step = 1.0 * options.batch * options.context * kolo::size();
  gpt::Report report{
      .ranks = kolo::size(),
      .parameters = examples::count_parameters(*model),
      .first_step = first_step,
      .steps = options.steps,
      .losses = training.losses,
      .train_loss = training.final_loss,
      .windows = files.windows,
      .validation_loss = gpt::validation_loss(model, corpus.held_out, starts),
      .tokens_per_second = (options.steps - first_step) * tokens_per_step / training.seconds,
      .step_ms_median = training.step_ms_median,
      .parameters_digest = digest.hex(),
      .different_ranks = examples::ranks_that_differ(digest.value()),
      .bytes_sent_per_step = examples::mean_over_ranks(training.bytes_sent_per_step),
      .metrics = training.metrics,
  };
  if (kolo::rank() == 0) {
    const gpt::NgramModel ngrams(corpus.training);
    const auto entropy = [&](int order) {
      return ngrams.cross_entropy(corpus.held_out, starts, window_bytes(options), order);
    };
    report.unigram_entropy = entropy(1);
    report.bigram_entropy = entropy(2);
    report.trigram_entropy = entropy(3);
  }
  return report;
}

// Runs on all ranks, since each may have only a shard of the parameters.
void show_sample(gpt::Gpt& model, const gpt::Options& options, const gpt::Corpus& corpus) {
  at::manual_seed(static_cast<std::uint64_t>(options.seed));
  const auto prompt = std::string_view(corpus.held_out).substr(0, kPromptBytes);
  const std::string text = gpt::printable(gpt::sample(model, prompt, kSampleBytes));
  if (kolo::rank() == 0) std::cout << "--- sample ---\n" << text << "\n--------------\n";
}

// Loads what --load names and returns the step to resume with; nothing, after an error text, if
// that fails.
std::optional<int> load_on_all_ranks(kolo::DistributedOptimizer& optimizer,
                                     const gpt::Options& options, const gpt::Corpus& corpus) {
  if (options.load.empty()) return 0;
  int first_step = 0;
  std::string error;
  try {
    first_step = gpt::load(optimizer, options, corpus.training);
  } catch (const kolo::Error& failure) {
    error = failure.what();
  }
  if (!examples::all_ranks_succeeded(error)) return std::nullopt;
  if (kolo::rank() == 0) {
    std::cout << "loaded " << options.load.string() << ": " << first_step << " of " << options.steps
              << " steps have been taken" << std::endl;
  }
  return first_step;
}

// The exit status of rank 0.
int check_requirement(const gpt::Options& options, const gpt::Report& report) {
  if (!options.require_loss) return 0;
  const std::string shortfall = gpt::shortfall(report, *options.require_loss);
  if (!shortfall.empty()) {
    std::cerr << "error: " << shortfall << '\n';
    return 1;
  }
  std::cout << "required         at most " << *options.require_loss
            << " nats/byte, below the trigram entropy: reached\n";
  return 0;
}

kolo::DistributedOptimizer::Options distribution(const gpt::Options& options) {
  return {.compression = kolo::Compression::named(options.compression),
          .shard = options.shard,
          .fused = options.fused};
}

int train(const gpt::Options& options, Files files) {
  gpt::Gpt model = gpt::make_model(options);
  const auto adamw = gpt::make_optimizer(model, options);
  kolo::broadcast_parameters(*model, /*root=*/0);
  kolo::DistributedOptimizer optimizer(*adamw, *model, distribution(options));

  const bool prints = kolo::rank() == 0;
  if (prints) print_task(options, files, examples::count_parameters(*model));
  const std::optional<int> first_step = load_on_all_ranks(optimizer, options, files.corpus);
  if (!first_step) return kWrongInput;
  const gpt::TrainingResult training =
      gpt::train(model, optimizer, options, files.corpus.training, *first_step);
  if (!options.export_file.empty()) optimizer.save_full_state(options.export_file);
  const gpt::Report report = judge(model, options, files, *first_step, training);
  show_sample(model, options, files.corpus);
  if (prints) {
    gpt::print(std::cout, report);
    if (files.json) files.json->write(gpt::to_json(report));
  }
  if (!report.different_ranks.empty()) return 1;
  return prints ? check_requirement(options, report) : 0;
}

int measure_efficiency(const gpt::Options& options, Files files) {
  gpt::Gpt local_model = gpt::make_model(options);
  const auto local_adamw = gpt::make_optimizer(local_model, options);
  gpt::Gpt model = gpt::make_model(options);
  const auto adamw = gpt::make_optimizer(model, options);
  kolo::broadcast_parameters(*model, /*root=*/0);
  kolo::DistributedOptimizer optimizer(*adamw, *model, distribution(options));
  const examples::Digest start = examples::digest_of_parameters(*model);

  gpt::Batches batches(options, files.corpus.training);
  const examples::Efficiency efficiency = examples::measure_efficiency(
      [&] {
        gpt::compute_gradients(local_model, *local_adamw, batches.next());
        examples::step_alone(*local_adamw, options.fused);
      },
      [&] { gpt::train_step(model, optimizer, batches.next()); },
      [&] { examples::synchronize(model->device()); }, options.efficiency);
  const examples::TrainedDigests digests{.start = start,
                                         .together = examples::digest_of_parameters(*model),
                                         .alone = examples::digest_of_parameters(*local_model)};
  if (!examples::all_ranks_succeeded(examples::training_error(digests))) return 1;
  if (kolo::rank() == 0) {
    const std::int64_t parameters = examples::count_parameters(*model);
    print_task(options, files, parameters);
    std::cout << efficiency;
    nlohmann::ordered_json report = examples::to_json(efficiency);
    report["parameters"] = parameters;
    if (files.json) files.json->write(report.dump() + '\n');
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  kolo::Runtime runtime;
  examples::share_cores(runtime.local_size());
  examples::keep_freed_memory();
  const auto parsed = gpt::parse_options(argc, argv);
  if (const auto* exit = std::get_if<examples::Exit>(&parsed)) {
    return examples::leave(*exit, runtime.rank() == 0);
  }
  const auto& options = std::get<gpt::Options>(parsed);
  if (!examples::has_device(options.device)) return kWrongInput;
  std::optional<Files> files = open_files_on_all_ranks(options);
  if (!files) return kWrongInput;
  return options.efficiency > 0 ? measure_efficiency(options, std::move(*files))
                                : train(options, std::move(*files));
}
