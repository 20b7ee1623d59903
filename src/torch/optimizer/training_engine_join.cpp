#include <memory>
#include <variant>

#include "kolo/collectives.hpp"
#include "torch/optimizer/training_engine.hpp"

namespace kolo::tensors {

int TrainingEngine::join() {
  context_.step.phases.require(StepCall::Join);
  if (context_.is_sharded()) return join_sharded();
  const int last = kolo::join(&context_.set);
  align_ranks(context_, batches_, option_sync_);
  return last;
}

/// A joined rank is needed for its shards: it takes part in the steps of the others, without
/// gradients of its own, until no rank is active.
int TrainingEngine::join_sharded() {
  if (context_.step.phases.current() == StepPhase::Synchronized) discard();
  const auto make_active = [](StepState* step) {
    step->is_active = true;
    step->phases.restart();
  };
  const std::unique_ptr<StepState, decltype(make_active)> joined(&context_.step, make_active);
  context_.step.is_active = false;
  for (synchronize(); context_.step.active_ranks > 0; synchronize()) {
    follow_one_step();
    context_.step.phases.restart();
  }
  batches_.clear_gradients();
  // If no rank has announced anything, all have joined at once.
  return commands_.take_last_active().value_or(context_.set.ranks().back());
}

/// Does what the active ranks do until the end of their step.
void TrainingEngine::follow_one_step() {
  for (;;) {
    const StepCommand command = commands_.receive();
    if (const auto* const clip = std::get_if<ClipCommand>(&command)) {
      gradients_.clip(batches_.gradients(), clip->max_norm, clip->norm_type);
    } else if (const auto* const unscale = std::get_if<UnscaleCommand>(&command)) {
      gradients_.unscale(batches_.gradients(), unscale->scale, /*is_local=*/false);
    } else if (std::holds_alternative<FindOverflowCommand>(command)) {
      gradients_.found();
    } else if (const auto* const update = std::get_if<UpdateCommand>(&command)) {
      OptionSync::apply(update->options, context_.groups);
      merge_options();
      update_shards();
      ++context_.steps;
      return;
    } else {  // SkipCommand, DiscardCommand
      return batches_.clear_gradients();
    }
  }
}

}  // namespace kolo::tensors
