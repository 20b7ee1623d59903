#include "gpt/checkpoints.hpp"

#include <filesystem>
#include <map>
#include <sstream>
#include <string>

#include "common/digest.hpp"
#include "kolo/error.hpp"
#include "kolo/runtime.hpp"

namespace gpt {
namespace {

constexpr int kKept = 2;

/// The settings that determine the batches and the schedule, whatever the number of ranks.
std::map<std::string, std::string> settings_of(const Options& options, std::string_view text) {
  std::ostringstream rate;
  rate << options.learning_rate;
  examples::Digest digest;
  digest.add(text);
  return {{"steps", std::to_string(options.steps)},
          {"seed", std::to_string(options.seed)},
          {"learning rate", rate.str()},
          {"windows a step", std::to_string(options.batch * kolo::size())},
          {"context", std::to_string(options.context)},
          {"digest of the text", digest.hex()}};
}

void require_same_run(const kolo::Loaded& loaded, const Options& options, std::string_view text) {
  const std::string what = "the checkpoint " + loaded.path.string();
  for (const auto& [name, value] : settings_of(options, text)) {
    const auto saved = loaded.extras.find(name);
    if (saved == loaded.extras.end()) {
      throw kolo::InvalidArgument(what + " is not one of train_gpt: it has no " + name);
    }
    if (saved->second != value) {
      throw kolo::InvalidArgument(what + " is of another run: its " + name + ": " + saved->second +
                                  ", but here: " + value);
    }
  }
  if (loaded.steps >= options.steps) {
    throw kolo::InvalidArgument(what + " has taken all " + std::to_string(options.steps) +
                                " steps; load an earlier one");
  }
}

}  // namespace

int load(kolo::DistributedOptimizer& optimizer, const Options& options, std::string_view text) {
  const kolo::Loaded loaded = optimizer.load(options.load);
  if (std::filesystem::is_regular_file(loaded.path)) return 0;
  require_same_run(loaded, options, text);
  return static_cast<int>(loaded.steps);
}

void save_if_due(kolo::DistributedOptimizer& optimizer, const Options& options,
                 std::string_view text, int done) {
  if (options.save.empty()) return;
  const bool is_due = options.save_every > 0 && done % options.save_every == 0;
  if (!is_due && done != options.steps) return;
  optimizer.save(options.save,
                 {.keep_last = kKept, .extras = settings_of(options, text), .in_background = true});
  if (done == options.steps) optimizer.wait_for_save();
}

}  // namespace gpt
