#include "train/optimizer/call_rules.hpp"

#include <array>
#include <cstddef>
#include <string>

#include "kolo/error.hpp"

namespace kolo::train {
namespace {

constexpr Outcome kRuns = Outcome::Runs;
constexpr Outcome kWaits = Outcome::Waits;
constexpr Outcome kThrows = Outcome::Throws;
constexpr std::optional<Shard> kNever{};
constexpr std::string_view kEndStep = "Call step() or zero_grad() first.";

constexpr std::array<CallRule, 17> kRules{{
    {Call::Step, "step()", kWaits, kRuns, kNever, {}},
    {Call::LocalStep, "step() under skip_synchronize()", kThrows, kRuns, kNever,
     "Call synchronize() before, or run backward() under no_sync()."},
    {Call::Synchronize, "synchronize()", kWaits, kRuns, kNever, {}},
    {Call::ZeroGrad, "zero_grad()", kWaits, kRuns, kNever, {}},
    {Call::ClipGradNorm, "clip_grad_norm_()", kWaits, kRuns, kNever, {}},
    {Call::ClipGradValue, "clip_grad_value_()", kWaits, kRuns, kNever, {}},
    {Call::ForEachGradient, "for_each_gradient()", kWaits, kRuns, Shard::Optimizer, {}},
    {Call::AddParameters, "adding or unfreezing parameters", kRuns, kRuns, Shard::None, {}},
    {Call::Join, "join()", kThrows, kRuns, kNever, kEndStep},
    {Call::Save, "save()", kRuns, kRuns, Shard::None, {}},
    {Call::SaveFullState, "save_full_state()", kRuns, kRuns, Shard::None, {}},
    {Call::Load, "load()", kThrows, kThrows, Shard::None, kEndStep},
    {Call::ParameterState, "parameter_state()", kRuns, kRuns, Shard::Optimizer, {}},
    {Call::ResetParameterState, "reset_parameter_state()", kRuns, kRuns, Shard::Optimizer, {}},
    {Call::FullParameters, "full_parameters()", kRuns, kRuns, Shard::Full, {}},
    {Call::CheckReplicas, "check_replicas()", kRuns, kRuns, Shard::None, {}},
    {Call::RegisterBucketHook, "register_bucket_hook()", kThrows, kRuns, kNever,
     "Call it before backward()."},
}};

}  // namespace

std::span<const CallRule> call_rules() { return kRules; }

void require_phase(Call call, StepPhase phase) {
  const CallRule& rule = kRules[static_cast<std::size_t>(call)];
  const bool is_reduced = phase == StepPhase::Synchronized;
  if (phase == StepPhase::Accumulating ||
      (is_reduced ? rule.reduced : rule.in_flight) != Outcome::Throws) {
    return;
  }
  throw InvalidArgument("DistributedOptimizer: " + std::string(rule.name) + " while gradients " +
                        (is_reduced ? "are reduced and not used yet. " : "are being reduced. ") +
                        std::string(rule.remedy));
}

}  // namespace kolo::train
