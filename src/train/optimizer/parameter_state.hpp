#pragma once

#include <cstddef>

#include "train/gradients/gradient_reducer.hpp"
#include "train/gradients/training_context.hpp"

namespace kolo::train {

/// The state that the wrapped optimizer keeps for a parameter of `reducer`, whole and copied. If it
/// is sharded, collective over the set that shards.
DistributedOptimizer::ParameterState state_of(const TrainingContext& context,
                                              const GradientReducer& reducer,
                                              std::size_t parameter);

/// Erases that state, or what this rank has of it.
void reset_state_of(const TrainingContext& context, const GradientReducer& reducer,
                    std::size_t parameter);

}  // namespace kolo::train
