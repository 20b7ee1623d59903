#pragma once

#include <vector>

#include "kolo/torch/distributed_optimizer.hpp"
#include "torch/reduction/parameter_watch.hpp"
#include "torch/tensors/agreement.hpp"
#include "torch/wrapped/option_sync.hpp"

namespace kolo::tensors {

/// The facts that must be equal on all ranks. Includes frozen parameters with Shard::Full.
std::vector<Fact> facts_of(const DistributedOptimizerOptions& options,
                           const std::vector<ReducedParameter>& parameters,
                           const std::vector<ReducedParameter>& frozen);

/// The same for parameter groups: their options, and the group of each parameter.
std::vector<Fact> facts_of(const OptionSync& option_sync,
                           const std::vector<ReducedParameter>& parameters);

}  // namespace kolo::tensors
