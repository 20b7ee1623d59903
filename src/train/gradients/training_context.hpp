#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <ATen/core/Tensor.h>

#include "kolo/process_set.hpp"
#include "kolo/torch/bucket_hook.hpp"
#include "kolo/torch/distributed_optimizer.hpp"
#include "train/gradients/frozen_parameters.hpp"
#include "train/gradients/step_reductions.hpp"
#include "train/sharding/gathered_units.hpp"
#include "train/sharding/parameter_shards.hpp"
#include "train/wrapped/wrapped_optimizer.hpp"

namespace kolo::train {

/// Shared by the parts of one DistributedOptimizer.
struct TrainingContext {
  using Groups = WrappedOptimizer::Groups;
  using NamedTensors = DistributedOptimizer::NamedParameters;

  ProcessSet& set;
  const std::shared_ptr<ProcessSet> set_owner = set.shared_from_this();  ///< outlives its Runtime
  const std::string prefix;                                              ///< of operations' names
  DistributedOptimizerOptions options;
  GradientCompression compression;
  WrappedOptimizer& wrapped;
  Groups& groups;  ///< the wrapper's own, equal to those of `wrapped`
  ShardSets sets{};
  BucketHook hook{};
  const std::shared_ptr<UnitCalls> unit_calls = std::make_shared<UnitCalls>(prefix + ".unit");
  StepState step{};
  FrozenParameters frozen{};    ///< with Shard::Full
  std::int64_t steps = 0;       ///< taken so far
  std::int64_t reductions = 0;  ///< also of dropped steps; fewer on a joined rank
  bool gathers_on_use = false;  ///< parameters, see GatheredUnits

  bool is_sharded() const { return options.shard != Shard::None; }
  /// Whether some ranks have joined, as far as this rank knows in this step.
  bool have_some_joined() const { return !step.joined_ranks.empty(); }
  ReductionSetup reduction_setup() {
    return {options, compression, sets,           hook,  wrapped,
            step,    unit_calls,  gathers_on_use, steps, is_sharded()};
  }
};

}  // namespace kolo::train
