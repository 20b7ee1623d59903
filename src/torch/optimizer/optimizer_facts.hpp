#pragma once

#include <vector>

#include "kolo/torch/distributed_optimizer.hpp"
#include "torch/reduction/parameter_watch.hpp"
#include "torch/tensors/agreement.hpp"

namespace kolo::tensors {

/// The facts that must be equal on all ranks. Includes frozen parameters with Shard::Full.
std::vector<Fact> facts_of(const DistributedOptimizerOptions& options,
                           const std::vector<ReducedParameter>& parameters,
                           const std::vector<ReducedParameter>& frozen);

}  // namespace kolo::tensors
