#pragma once

#include <string>
#include <vector>

#include "kolo/agreement.hpp"
#include "kolo/torch/distributed_optimizer_options.hpp"
#include "train/gradients/gradient_compression.hpp"
#include "train/gradients/parameter_watch.hpp"
#include "train/wrapped/options.hpp"

/// What is checked before the gradients of parameters are reduced: on this rank, and that ranks
/// agree.
namespace kolo::train {

/// Sets which parameters are compressed. Returns the problem with them; empty if there is none.
std::string apply_compression_policy(const DistributedOptimizerOptions& options,
                                     const GradientCompression& compression,
                                     std::vector<ReducedParameter>& parameters);

/// The problem with parameters whose gradients are to be reduced; empty if there is none. `first`
/// is the optimizer's first.
std::string problem_with(const std::vector<ReducedParameter>& parameters,
                         const ReducedParameter& first, const DistributedOptimizerOptions& options);

/// The facts about options and parameters that must be equal on all ranks. Includes frozen
/// parameters with Shard::Full.
std::vector<NamedValue> facts_of(const DistributedOptimizerOptions& options,
                                 const std::vector<ReducedParameter>& parameters,
                                 const std::vector<ReducedParameter>& frozen);

/// The facts about parameter groups that must be equal on all ranks: their options, and the group
/// of each parameter.
std::vector<NamedValue> facts_of(const OptionSync& option_sync,
                                 const std::vector<ReducedParameter>& parameters);

}  // namespace kolo::train
