#include "torch/reduction/step_phase.hpp"

#include <array>
#include <string>
#include <string_view>

#include "kolo/error.hpp"

namespace kolo::tensors {
namespace {

struct Rule {
  std::string_view name;
  bool when_synchronized;  // all calls are allowed while accumulating, none while reducing
  std::string_view remedy;
};

/// In the order of StepCall.
constexpr std::array<Rule, 4> kRules{{
    {"join()", true, "Call step() or zero_grad() first."},
    {"load()", false, "Call step() or zero_grad() first."},
    {"register_bucket_hook()", true, "Call it before backward()."},
    {"step() under skip_synchronize()", true,
     "Call synchronize() before, or run backward() under no_sync()."},
}};

}  // namespace

void StepPhases::require(StepCall call) const {
  const Rule& rule = kRules[static_cast<std::size_t>(call)];
  const bool is_synchronized = phase_ == StepPhase::Synchronized;
  if (!is_in_flight() && (!is_synchronized || rule.when_synchronized)) return;
  throw InvalidArgument(
      "DistributedOptimizer: " + std::string(rule.name) + " while gradients " +
      (is_synchronized ? "are reduced and not used yet. " : "are being reduced. ") +
      std::string(rule.remedy));
}

}  // namespace kolo::tensors
