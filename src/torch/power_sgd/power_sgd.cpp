#include "kolo/torch/power_sgd.hpp"

#include <cmath>
#include <string>
#include <utility>

#include <c10/util/StringUtil.h>

#include "kolo/runtime.hpp"
#include "torch/power_sgd/power_sgd_reducer.hpp"
#include "torch/tensors/agreement.hpp"

namespace kolo {
namespace {

std::string problem_with(const PowerSgdOptions& options) {
  if (options.rank < 1) return c10::str("rank is ", options.rank, ". It must be at least 1.");
  if (options.start_step < 0) {
    return c10::str("start_step is ", options.start_step, ". It must not be negative.");
  }
  if (!(options.min_compression_rate >= 1 && std::isfinite(options.min_compression_rate))) {
    return c10::str("min_compression_rate is ", options.min_compression_rate,
                    ". It must be a number from 1 on: below, P and Q are larger than gradients.");
  }
  return {};
}

/// The options with their process set. Collective.
PowerSgdOptions agreed(PowerSgdOptions options) {
  if (options.process_set == nullptr) options.process_set = &Runtime::current().world();
  ProcessSet& set = *options.process_set;
  tensors::agree(set, set.next_name("power_sgd"), "PowerSgd",
                 {{"rank", std::to_string(options.rank)},
                  {"start_step", std::to_string(options.start_step)},
                  {"min_compression_rate", std::to_string(options.min_compression_rate)},
                  {"error_feedback", options.error_feedback ? "true" : "false"},
                  {"warm_start", options.warm_start ? "true" : "false"},
                  {"seed", std::to_string(options.seed)}},
                 problem_with(options));
  return options;
}

}  // namespace

PowerSgd::PowerSgd(const Options& options)
    : reducer_(std::make_shared<tensors::PowerSgdReducer>(agreed(options))) {}

BucketHook PowerSgd::hook() const {
  BucketHook hook(
      [reducer = reducer_](GradientBucket bucket) { return reducer->reduce(std::move(bucket)); });
  hook.error_feedback = reducer_->options().error_feedback;
  if (!reducer_->options().warm_start) return hook;
  hook.state = [reducer = reducer_] { return reducer->state(); };
  hook.set_state = [reducer = reducer_](const auto& state) { reducer->set_state(state); };
  return hook;
}

}  // namespace kolo
