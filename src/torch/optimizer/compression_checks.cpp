#include "torch/optimizer/compression_checks.hpp"

#include <exception>

#include "kolo/error.hpp"
#include "kolo/process_set.hpp"
#include "runtime/lane/lane.hpp"
#include "torch/tensors/tensor_memory.hpp"

namespace kolo::tensors {

GradientCompression compression_of(const DistributedOptimizerOptions& options) {
  GradientCompression compression{.compression = options.compression};
  try {
    compression.codec = options.process_set->lane()->codec_named(options.compression.name());
  } catch (const InvalidArgument&) {
    // problem_with_compression() reports this on all ranks.
  }
  if (options.shard == Shard::None) {
    compression.scope = options.compression_scope;
  } else if (options.shard_scope == ShardScope::Node) {
    compression.is_of_replicas =
        compression.codec != nullptr || options.compression_scope == CompressionScope::BetweenNodes;
  }
  compression.has_error_feedback = compression.codec != nullptr && options.error_feedback;
  return compression;
}

std::string problem_with_compression(const DistributedOptimizerOptions& options) {
  try {
    const Codec* const codec = options.process_set->lane()->codec_named(options.compression.name());
    if (codec == nullptr || options.op != ReduceOp::Adasum) return {};
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "compression is " + std::string(options.compression.name()) +
         ", which is for Average and Sum, not Adasum. Use none, fp16 or bf16.";
}

std::string problem_with_compression_scope(const DistributedOptimizerOptions& options) {
  const std::string scope = "compression_scope is BetweenNodes, ";
  if (options.compression_scope == CompressionScope::Everywhere) return {};
  if (options.op == ReduceOp::Adasum) {
    return scope + "which is for Average and Sum, not Adasum. Use Everywhere.";
  }
  if (options.shard == Shard::None || options.shard_scope == ShardScope::Node) return {};
  return scope + "and shard = " + std::string(name_of(*options.shard)) +
         " with shard_scope = World scatters gradients over all ranks at once, without regard to "
         "nodes. Use shard_scope = Node, shard = none, or compression_scope = Everywhere.";
}

std::string apply_compression_policy(const DistributedOptimizerOptions& options,
                                     const GradientCompression& compression,
                                     std::vector<ReducedParameter>& parameters) {
  for (ReducedParameter& parameter : parameters) {
    const std::string where = "parameter '" + parameter.name + "': ";
    try {
      parameter.is_compressed = !options.compression_policy ||
                                options.compression_policy(parameter.name, parameter.tensor);
    } catch (const std::exception& error) {
      return where + "compression_policy has thrown: " + error.what();
    }
    if (compression.codec != nullptr && parameter.tensor.is_complex()) {
      parameter.is_compressed = false;  // codecs are for floats
    }
    if (parameter.tensor.is_cpu()) continue;
    if (compression.scope == CompressionScope::BetweenNodes) {
      return where + "it lies on " + parameter.tensor.device().str() +
             ", and compression_scope BetweenNodes is for gradients in CPU memory. Use Everywhere.";
    }
    if (compression.codec == nullptr || !parameter.is_compressed) continue;
    if (runtime::Lane::runs_on_gpus(*compression.codec)) continue;
    return where + "it lies on " + parameter.tensor.device().str() + ", and compression " +
           std::string(options.compression.name()) +
           " is a codec of the program's, which has no kernels for GPUs. Use int8, one_bit, top_k, "
           "random_k, fp16, bf16 or none.";
  }
  return {};
}

}  // namespace kolo::tensors
