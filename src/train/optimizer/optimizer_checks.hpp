#pragma once

#include <string>

#include "kolo/torch/distributed_optimizer.hpp"
#include "train/gradients/gradient_compression.hpp"
#include "train/wrapped/wrapped_optimizer.hpp"

namespace kolo::train {

/// The gradient compression that the completed options describe. An unknown name counts as no
/// codec.
GradientCompression compression_of(const DistributedOptimizerOptions& options);

/// The problem with this rank's arguments to a DistributedOptimizer, and what to do; empty if there
/// is none.
std::string problem_with(WrappedOptimizer& optimizer,
                         const DistributedOptimizer::NamedParameters& names,
                         const DistributedOptimizerOptions& options);

}  // namespace kolo::train
