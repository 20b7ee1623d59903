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
    // problem_with_compression() says so on all ranks.
  }
  compression.is_between_nodes = compression.codec != nullptr && options.shard != Shard::None &&
                                 options.shard_scope == ShardScope::Node;
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
    if (compression.codec == nullptr) continue;
    if (parameter.tensor.is_complex()) parameter.is_compressed = false;  // codecs are for floats
    if (!parameter.is_compressed || parameter.tensor.is_cpu()) continue;
    if (runtime::Lane::runs_on_gpus(*compression.codec)) continue;
    return where + "it lies on " + parameter.tensor.device().str() + ", and compression " +
           std::string(options.compression.name()) +
           " is a codec of the program's, which has no kernels for GPUs. Use int8, one_bit, top_k, "
           "random_k, fp16, bf16 or none.";
  }
  return {};
}

}  // namespace kolo::tensors
