// TrainingEngine: parameters that are gathered on use.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "kolo/collectives.hpp"
#include "kolo/error.hpp"
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
  for (GatheredUnits* const units : batches_.units()) units->finish_gathering();
  barrier(context_.unit_calls->next({.process_set = &context_.set}, purpose));
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
    throw;
  }
  normalization_.finish(/*have_succeeded=*/true);
  if (is_discarded) return;
  for (const auto& reducer : batches_) reducer->follow_arrival();
  normalization_.normalize();
}

}  // namespace kolo::tensors
