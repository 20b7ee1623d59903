#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "kolo/shard.hpp"
#include "train/gradients/step_state.hpp"

namespace kolo::train {

/// Calls of a DistributedOptimizer whose outcome depends on the state of the step.
enum class Call : std::uint8_t {
  Step,
  LocalStep,
  Synchronize,
  ZeroGrad,
  ClipGradNorm,
  ClipGradValue,
  ForEachGradient,
  AddParameters,
  Join,
  Save,
  SaveFullState,
  Load,
  ParameterState,
  ResetParameterState,
  FullParameters,
  CheckReplicas,
  RegisterBucketHook,
};

enum class Outcome : std::uint8_t {
  Runs,
  Waits,   ///< for the gradients of all ranks that have not joined, then runs
  Throws,  ///< InvalidArgument
};

/// What a call does in each state of a step, and with joined ranks. docs/training.md shows these
/// rules as a table.
struct CallRule {
  Call call;
  std::string_view name;
  Outcome in_flight;  ///< gradients have arrived and are not reduced, or backward() has thrown
  Outcome reduced;    ///< they are reduced, and neither used nor dropped
  /// The call needs all ranks in this mode and in those that shard more: it throws InvalidArgument
  /// on all that have not joined, if some have.
  std::optional<Shard> needs_all_from;
  std::string_view remedy;  ///< ends the text of the error, where the state refuses the call
};

/// In the order of Call.
std::span<const CallRule> call_rules();

/// Throws InvalidArgument, naming what to call first, if the phase does not allow `call`.
void require_phase(Call call, StepPhase phase);

}  // namespace kolo::train
