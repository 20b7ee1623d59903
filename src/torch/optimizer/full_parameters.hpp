#pragma once

#include <functional>

#include "torch/optimizer/parameter_batches.hpp"
#include "torch/optimizer/training_context.hpp"

namespace kolo::tensors {

/// Puts frozen parameters of `all` into one copy with Shard::Full; with other modes gives deferred
/// ones elements. Collective.
void place_frozen_parameters(TrainingContext& context, const TrainingContext::NamedTensors& all);

/// Runs `write`, which may write to parameters; see DistributedOptimizer::full_parameters().
/// Meanwhile this rank has private copies of those of which ranks share one copy.
void write_full_parameters(TrainingContext& context, ParameterBatches& batches,
                           const std::function<void()>& write);

}  // namespace kolo::tensors
