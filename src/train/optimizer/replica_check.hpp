#pragma once

#include "train/gradients/gradient_reducers.hpp"
#include "train/gradients/training_context.hpp"

namespace kolo::train {

/// Compares the parameters of all ranks by digests; see DistributedOptimizer::check_replicas().
/// Throws MismatchError on all ranks if they differ. Collective and blocking.
void compare_replicas(const TrainingContext& context, const GradientReducers& reducers);

}  // namespace kolo::train
