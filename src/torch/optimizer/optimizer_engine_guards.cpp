#include <string>

#include "kolo/error.hpp"
#include "kolo/shard.hpp"
#include "torch/optimizer/optimizer_engine.hpp"

namespace kolo::tensors {

// --- what a program must not do ---

void OptimizerEngine::require_whole(const std::string& what) const {
  if (options_.shard == Shard::None) return;
  throw InvalidArgument("DistributedOptimizer: " + what + " is not possible with shard = " +
                        std::string(kolo::name_of(*options_.shard)) + ". Use shard = none.");
}

void OptimizerEngine::require_undivided(const std::string& what) const {
  if (!view().is_divided) return;
  throw InvalidArgument("DistributedOptimizer: " + what +
                        " moves whole state, of which each rank has a part with shard = " +
                        std::string(kolo::name_of(*options_.shard)) +
                        ". Use the optimizer's save(folder) and load(folder).");
}

void OptimizerEngine::require_untouched() const {
  for (const auto& reducer : reducers_) {
    reducer->watch().require_in_place();
    reducer->watch().require_no_whole_state(wrapped_);
  }
}

std::string OptimizerEngine::changed_since_arrival() const {
  for (const auto& reducer : reducers_) {
    if (std::string name = reducer->changed_since_arrival(); !name.empty()) return name;
  }
  return {};
}

/// Where gradients are thrown away after a parameter has changed: once a program may have its
/// reasons, as one that clamps the weights of a GAN. Again, with no step between, the wrapped
/// optimizer has stepped instead.
void OptimizerEngine::expect_reason(const std::string& changed) {
  if (changed.empty() || ++unused_changes_ < 2) return;
  throw InvalidArgument(
      "DistributedOptimizer: gradients have been thrown away twice without a step() between, and "
      "each time parameters such as '" +
      changed +
      "' had changed since their gradients came. Call step() of the DistributedOptimizer, not of "
      "the wrapped one, which uses this rank's gradients alone. Where a program changes parameters "
      "in another way, let it run such a backward() under no_sync().");
}

}  // namespace kolo::tensors
