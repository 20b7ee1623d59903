// Compares ways to compress gradients in training: loss, bytes sent, and time.
//
//   mpirun -np 2 compare_compression --help
#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "common/agreement.hpp"
#include "common/freed_memory.hpp"
#include "common/model.hpp"
#include "common/output_file.hpp"
#include "common/resources.hpp"
#include "compression/cases.hpp"
#include "compression/options.hpp"
#include "compression/race.hpp"
#include "compression/report.hpp"
#include "gpt/corpus.hpp"
#include "gpt/evaluation.hpp"
#include "gpt/evaluation_windows.hpp"
#include "kolo/kolo.hpp"

namespace {

using Json = nlohmann::ordered_json;

constexpr int kWrongInput = 2;
constexpr std::size_t kEvaluatedBytes = std::size_t{1} << 17;  // at most, of the held-out text
constexpr int kSettlingSteps = 2;  // buckets are laid out, and names become known

std::size_t window_bytes(const gpt::Options& options) {
  return static_cast<std::size_t>(options.context) + 1;
}

std::optional<gpt::Corpus> read_on_all_ranks(const gpt::Options& options) {
  gpt::Corpus corpus;
  std::string error;
  try {
    corpus = gpt::load_corpus(options.text.empty() ? gpt::torch_headers(KOLO_GPT_TEXT_FOLDER)
                                                   : gpt::text_files(options.text),
                              window_bytes(options));
  } catch (const std::runtime_error& failure) {
    error = failure.what();
  }
  if (!examples::all_ranks_succeeded(error)) return std::nullopt;
  return corpus;
}

/// The first step whose time and bytes count: by then all cases compress, if the run is long
/// enough.
std::size_t first_step(const compression::Options& options) {
  const int steps = options.training.steps;
  const auto start = static_cast<int>(options.settings.start_step);
  return static_cast<std::size_t>(start + kSettlingSteps < steps
                                      ? start + kSettlingSteps
                                      : std::min(kSettlingSteps, steps - 1));
}

Json compare(const compression::Options& options, const gpt::Corpus& corpus) {
  const std::size_t length = window_bytes(options.training);
  const gpt::EvaluationWindows windows = gpt::evaluation_windows(
      corpus.training, corpus.held_out, length, kEvaluatedBytes / length + 1);
  std::vector<std::unique_ptr<compression::Training>> trainings;
  for (compression::Case& kind : compression::chosen_cases(options.settings, options.cases)) {
    trainings.push_back(
        std::make_unique<compression::Training>(std::move(kind), options, corpus.training));
  }
  compression::race(trainings, options.training.steps);
  Json cases = Json::array();
  double none_loss = 0;
  for (const auto& training : trainings) {
    const double loss = gpt::validation_loss(training->model(), corpus.held_out, windows.starts);
    if (cases.empty()) none_loss = loss;
    cases.push_back(
        compression::judge(*training, *trainings.front(), loss, none_loss, first_step(options)));
  }
  return {{"preset", options.preset},
          {"optimizer", options.optimizer},
          {"parameters", examples::count_parameters(*trainings.front()->model())},
          {"ranks", kolo::size()},
          {"steps", options.training.steps},
          {"rank", options.settings.rank},
          {"start_step", options.settings.start_step},
          {"fraction", options.settings.fraction},
          {"cases", std::move(cases)}};
}

}  // namespace

int main(int argc, char** argv) {
  kolo::Runtime runtime;
  examples::share_cores(runtime.local_size());
  examples::keep_freed_memory();
  compression::Options options;
  if (const auto exit = compression::parse_options(argc, argv, options)) {
    return examples::leave(*exit, runtime.rank() == 0);
  }
  const std::optional<gpt::Corpus> corpus = read_on_all_ranks(options.training);
  if (!corpus) return kWrongInput;
  examples::OutputFile json(runtime.rank() == 0 ? options.json : "");
  examples::OutputFile svg(runtime.rank() == 0 ? options.svg : "");
  if (!examples::all_ranks_succeeded(json.error() + svg.error())) return kWrongInput;

  const Json results = compare(options, *corpus);
  if (runtime.rank() == 0) std::fputs(compression::to_table(results).c_str(), stdout);
  if (json.is_wanted()) json.write(results.dump(2) + '\n');
  if (svg.is_wanted()) svg.write(compression::to_svg(results));
  return 0;
}
