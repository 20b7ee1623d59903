#pragma once

#include <string>
#include <vector>

#include "kolo/torch/distributed_optimizer.hpp"
#include "torch/reduction/gradient_compression.hpp"
#include "torch/reduction/parameter_watch.hpp"

namespace kolo::tensors {

/// The gradient compression that the completed options describe. An unknown name counts as no
/// codec.
GradientCompression compression_of(const DistributedOptimizerOptions& options);

/// The problem with the options' compression, and what to do; empty if there is none.
std::string problem_with_compression(const DistributedOptimizerOptions& options);
/// The same for the compression scope, which also concerns compressors.
std::string problem_with_compression_scope(const DistributedOptimizerOptions& options);

/// Sets which parameters are compressed. Returns the problem with them; empty if there is none.
std::string apply_compression_policy(const DistributedOptimizerOptions& options,
                                     const GradientCompression& compression,
                                     std::vector<ReducedParameter>& parameters);

}  // namespace kolo::tensors
