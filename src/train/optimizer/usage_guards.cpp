#include "train/optimizer/usage_guards.hpp"

#include "kolo/error.hpp"
#include "kolo/shard.hpp"

namespace kolo::train {

void UsageGuards::require_unsharded(const std::string& what, const std::string& instead) const {
  if (!context_.is_sharded()) return;
  throw InvalidArgument("DistributedOptimizer: " + what + " is not possible with shard = " +
                        std::string(kolo::name_of(*context_.options.shard)) + ". " + instead);
}

void UsageGuards::require_whole_state(const std::string& what) const {
  if (!reducers_.are_sharded()) return;
  throw InvalidArgument("DistributedOptimizer: " + what +
                        " needs whole state, but each rank has only a shard of it with shard = " +
                        std::string(kolo::name_of(*context_.options.shard)) +
                        ". Use the optimizer's save(folder) and load(folder).");
}

void UsageGuards::require_untouched() const {
  for (const GatheredUnits* const units : reducers_.units()) units->require_usable();
  for (const auto& reducer : reducers_) {
    reducer->watch().require_in_place();
    reducer->watch().require_unwritten();
    reducer->watch().require_no_whole_state(context_.wrapped);
  }
  context_.frozen.require_untouched();
}

void UsageGuards::discard(const std::string& changed) {
  if (changed.empty() || ++discards_after_change_ < 2) return;
  throw InvalidArgument(
      "DistributedOptimizer: gradients were discarded twice without a step() between, and each "
      "time parameters such as '" +
      changed +
      "' had changed since their gradients arrived. Call step() of the DistributedOptimizer, not "
      "of the wrapped optimizer, which uses this rank's gradients alone. If the program changes "
      "parameters in another way, run such a backward() under no_sync().");
}

}  // namespace kolo::train
