#pragma once

#include <string>
#include <vector>

#include "kolo/distributed_optimizer.hpp"
#include "torch/reduction/gradient_compression.hpp"
#include "torch/reduction/parameter_watch.hpp"

namespace kolo::tensors {

/// How the options, which are complete, have gradients compressed. An unknown name is no codec.
GradientCompression compression_of(const DistributedOptimizerOptions& options);

/// What is wrong with the options' compression, and what to do; empty if nothing is.
std::string problem_with_compression(const DistributedOptimizerOptions& options);
/// The same of where they compress, which concerns compressors, too.
std::string problem_with_compression_scope(const DistributedOptimizerOptions& options);

/// Sets which parameters are compressed. Returns what is wrong with them; empty if nothing is.
std::string apply_compression_policy(const DistributedOptimizerOptions& options,
                                     const GradientCompression& compression,
                                     std::vector<ReducedParameter>& parameters);

}  // namespace kolo::tensors
