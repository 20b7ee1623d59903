#pragma once

#include "train/optimizer/parameter_batches.hpp"
#include "train/optimizer/training_context.hpp"

namespace kolo::train {

/// Compares the parameters of all ranks by digests; see DistributedOptimizer::check_replicas().
/// Throws MismatchError on all ranks if they differ. Collective and blocking.
void compare_replicas(const TrainingContext& context, const ParameterBatches& batches);

}  // namespace kolo::train
