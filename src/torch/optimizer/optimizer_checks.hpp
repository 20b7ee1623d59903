#pragma once

#include <string>
#include <vector>

#include <torch/optim/optimizer.h>

#include "kolo/distributed_optimizer.hpp"
#include "torch/reduction/gradient_reducer.hpp"
#include "torch/tensors/agreement.hpp"

namespace kolo::tensors {

/// What is wrong with the arguments of a DistributedOptimizer on this rank, and what to do; or
/// empty.
std::string defect_of(torch::optim::Optimizer& optimizer,
                      const DistributedOptimizer::NamedParameters& names,
                      const DistributedOptimizerOptions& options);

/// The same for parameters whose gradients are to be reduced, and which may be divided; `first` is
/// the first of all that the optimizer reduces.
std::string defect_of(const std::vector<ReducedParameter>& parameters,
                      const ReducedParameter& first, const DistributedOptimizerOptions& options);

/// What all ranks must have chosen alike.
std::vector<Fact> facts_of(const DistributedOptimizerOptions& options,
                           const std::vector<ReducedParameter>& parameters);

}  // namespace kolo::tensors
