// TrainingEngine: parameters that are gathered on use.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "kolo/collectives.hpp"
#include "kolo/error.hpp"
#include "kolo/runtime.hpp"
#include "torch/optimizer/training_engine.hpp"

namespace kolo::tensors {

void TrainingEngine::start_units() {
  expect_all_active();
  context_.unit_calls->before_gather = [this](const std::string& batch, std::size_t unit,
                                              std::size_t slot) {
    if (context_.step.is_active) commands_.announce(GatherCommand{batch, unit, slot});
  };
  context_.unit_calls->find_joined = [this] { return find_joined(); };
}

/// A barrier that is numbered like the collectives of units, after those in flight.
void TrainingEngine::synchronize_ranks(const std::string& purpose) {
  if (context_.set.size() == 1) return;
  for (GatheredUnits* const units : batches_.units()) units->finish_gathering();
  barrier(context_.unit_calls->next({.process_set = &context_.set}, purpose));
}

/// Runs a collective between the reduction and the end of a step, for this rank's call `call`. If
/// ranks of a sharded optimizer call different ones, all throw MismatchError, and the step ends
/// without an update.
void TrainingEngine::call_in_step(const char* call, const std::function<void()>& collective) {
  try {
    collective();
  } catch (const MismatchError& error) {
    abandon_step();
    throw MismatchError("DistributedOptimizer: rank " +
                        std::to_string(context_.set.runtime().rank()) + " called " + call +
                        " with reduced gradients, unlike other ranks. Let all ranks step, or all "
                        "drop the gradients. " +
                        error.what());
  }
}

/// Of a sharded optimizer. Numbered like the collectives of units, so that ranks that call
/// something else, such as step(), get an error at once.
void TrainingEngine::sum_over_ranks(const TensorView& rows) {
  const OperationOptions options = context_.unit_calls->next({.process_set = &context_.set}, {});
  call_in_step("clip_grad_norm_() or a step with GradScaler", [&] {
    allreduce(rows, rows,
              {.op = ReduceOp::Sum, .name = options.name, .process_set = options.process_set});
  });
}

/// Called on all ranks after a mismatch: whether some have joined, since the next numbered
/// collective of a joined rank is that of join(). Joined ranks then wait for commands.
bool TrainingEngine::find_joined() {
  std::int64_t is_active = context_.step.is_active ? 1 : 0;
  std::vector<std::int64_t> all(static_cast<std::size_t>(context_.set.size()));
  allgather({&is_active, DType::Int64, {1}, Device{}}, [&](const auto&) { return all.data(); },
            {.name = context_.prefix + ".joined", .process_set = &context_.set});
  context_.step.active_ranks = static_cast<int>(std::ranges::count(all, 1));
  return context_.have_some_joined();
}

/// A new step begins. If parameters are gathered on use, the first mismatch reveals which ranks
/// have joined; in other modes the reductions do.
void TrainingEngine::expect_all_active() {
  if (context_.gathers_on_use) context_.step.active_ranks = context_.set.size();
}

/// Reduces the gradients of the step that are not reduced yet.
void TrainingEngine::reduce(bool is_discarded) {
  const auto wait_for_others = [&] {
    if (context_.step.is_active) commands_.announce(ReduceCommand{is_discarded});
    synchronize_ranks("the end of backward()");
  };
  if (context_.gathers_on_use) {
    try {
      wait_for_others();
    } catch (const MismatchError&) {
      if (!context_.step.is_active || !find_joined()) throw;
      wait_for_others();
    }
  }
  normalization_.begin();
  try {
    batches_.reduce_all();
  } catch (...) {
    normalization_.finish(/*have_succeeded=*/false);
    try {
      comparison_.require_alike();  // the error may be of this rank alone
    } catch (const MismatchError&) {
    }
    throw;
  }
  normalization_.finish(/*have_succeeded=*/true);
  try {
    comparison_.require_alike();
  } catch (const MismatchError&) {
    abandon_step();
    throw;
  }
  comparison_.note(StepEnd::Open);
  std::vector<std::string> dropped;
  if (!is_discarded) dropped = batches_.drop_undefined();
  // Collective in the first step, which other ranks may take even if this one discards it.
  for (const auto& reducer : batches_) reducer->follow_arrival();
  if (is_discarded) return;
  normalization_.normalize();
  note_dropped(dropped);
}

}  // namespace kolo::tensors
