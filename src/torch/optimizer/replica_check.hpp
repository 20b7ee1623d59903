#pragma once

#include "torch/optimizer/parameter_batches.hpp"
#include "torch/optimizer/training_context.hpp"

namespace kolo::tensors {

/// Compares the parameters of all ranks by digests; see DistributedOptimizer::check_replicas().
/// Throws MismatchError on all ranks if they differ. Collective and blocking.
void compare_replicas(const TrainingContext& context, const ParameterBatches& batches);

}  // namespace kolo::tensors
