#pragma once

#include <string>
#include <vector>

#include "kolo/torch/distributed_optimizer.hpp"
#include "torch/reduction/gradient_reducer.hpp"
#include "torch/wrapped/wrapped_optimizer.hpp"

namespace kolo::tensors {

/// The problem with this rank's arguments to a DistributedOptimizer, and what to do; empty if there
/// is none.
std::string problem_with(WrappedOptimizer& optimizer,
                         const DistributedOptimizer::NamedParameters& names,
                         const DistributedOptimizerOptions& options);

/// The same for parameters whose gradients are to be reduced; `first` is the optimizer's first.
std::string problem_with(const std::vector<ReducedParameter>& parameters,
                         const ReducedParameter& first, const DistributedOptimizerOptions& options);

}  // namespace kolo::tensors
