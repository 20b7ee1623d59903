#pragma once

#include <functional>

#include "train/gradients/gradient_reducers.hpp"
#include "train/gradients/training_context.hpp"

namespace kolo::train {

/// Runs `write`, which may write to parameters; see DistributedOptimizer::full_parameters().
/// Meanwhile this rank has private copies of all shared and sharded parameters.
void write_full_parameters(TrainingContext& context, GradientReducers& reducers,
                           const std::function<void()>& write);

}  // namespace kolo::train
