#include <memory>
#include <optional>
#include <variant>

#include "kolo/collectives.hpp"
#include "kolo/error.hpp"
#include "torch/optimizer/training_engine.hpp"

namespace kolo::tensors {

int TrainingEngine::join() {
  context_.step.phases.require(StepCall::Join);
  if (context_.options.local_sgd.period > 0) {
    throw InvalidArgument(
        "DistributedOptimizer: join() with local_sgd, whose ranks have parameters of their own. "
        "Give all ranks equally many steps.");
  }
  int last = 0;
  if (context_.is_sharded()) {
    last = join_sharded();
    comparison_.compare_last();
  } else {
    last = kolo::join(&context_.set);
    align_ranks(context_, batches_, option_sync_, comparison_);
  }
  comparison_.restart();
  normalization_.forget_reference();
  replica_check_.restart();
  return last;
}

/// Blocks until active ranks need this joined one. Returns false if all ranks have joined.
bool TrainingEngine::await_step() {
  StepState& step = context_.step;
  if (!context_.gathers_on_use) {
    synchronize();
  } else if (!context_.have_some_joined()) {
    try {
      synchronize_ranks("join()");
      step.active_ranks = 0;  // all have joined
    } catch (const MismatchError&) {
      if (!find_joined()) throw;
    }
  }
  return step.active_ranks > 0;
}

/// Other ranks need a joined rank's shards: it takes part in their steps, without gradients of its
/// own, until no rank is active.
int TrainingEngine::join_sharded() {
  if (context_.step.phases.current() == StepPhase::Synchronized) discard();
  const auto make_active = [](TrainingContext* context) {
    context->step.is_active = true;
    context->step.phases.restart();
  };
  const std::unique_ptr<TrainingContext, decltype(make_active)> joined(&context_, make_active);
  context_.step.is_active = false;
  while (await_step()) {
    follow_one_step();
    context_.step.phases.restart();
  }
  expect_all_active();
  for (GatheredUnits* const units : batches_.units()) units->restart();
  batches_.clear_gradients();
  // If no rank has announced anything, all have joined simultaneously.
  return commands_.take_last_active().value_or(context_.set.ranks().back());
}

/// Follows the commands of active ranks until the end of their step, or until none is active.
void TrainingEngine::follow_one_step() {
  while (const std::optional<StepCommand> received = commands_.receive()) {
    const StepCommand& command = *received;
    if (const auto* const gather = std::get_if<GatherCommand>(&command)) {
      batches_.take_part(*gather);
    } else if (const auto* const reduction = std::get_if<ReduceCommand>(&command)) {
      reduce(reduction->is_discarded);
    } else if (const auto* const clip = std::get_if<ClipCommand>(&command)) {
      gradients_.clip(batches_.gradients(), clip->max_norm, clip->norm_type,
                      /*is_local=*/false);
    } else if (const auto* const clip_value = std::get_if<ClipValueCommand>(&command)) {
      batches_.clip_values(clip_value->max_value);
    } else if (const auto* const drop = std::get_if<DropCommand>(&command)) {
      batches_.drop(drop->parameters);
      comparison_.note_dropped(drop->parameters);
    } else if (const auto* const unscale = std::get_if<UnscaleCommand>(&command)) {
      gradients_.unscale(batches_.gradients(), unscale->scale, /*is_local=*/false);
    } else if (std::holds_alternative<FindOverflowCommand>(command)) {
      gradients_.found();
    } else if (const auto* const update = std::get_if<UpdateCommand>(&command)) {
      OptionSync::apply(update->options, context_.groups);
      merge_options();
      update_shards();
      ++context_.steps;
      return end_step(StepEnd::Step);
    } else if (std::holds_alternative<SkipCommand>(command)) {
      return skip_step();
    } else {  // DiscardCommand
      end_dropped_step();
      batches_.clear_gradients();
      if (!context_.gathers_on_use) return;
      context_.step.phases.restart();
    }
  }
}

}  // namespace kolo::tensors
