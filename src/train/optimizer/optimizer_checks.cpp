#include "train/optimizer/optimizer_checks.hpp"

#include <cstddef>
#include <exception>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include <c10/core/ScalarType.h>

#include "base/text.hpp"
#include "kolo/error.hpp"
#include "kolo/process_set.hpp"
#include "runtime/engine/engine.hpp"
#include "train/gradients/gradient_reducer.hpp"
#include "train/optimizer/local_sgd.hpp"
#include "train/sharding/parameter_shards.hpp"
#include "train/tensors/deferred.hpp"
#include "train/tensors/parameter_storage.hpp"
#include "train/tensors/tensor_memory.hpp"

namespace kolo::train {

GradientCompression compression_of(const DistributedOptimizerOptions& options) {
  GradientCompression compression{.compression = options.compression};
  try {
    compression.codec = options.process_set->engine()->codec_named(options.compression.name());
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
    const Codec* const codec =
        options.process_set->engine()->codec_named(options.compression.name());
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
    return where + "it lies on " + parameter.tensor.device().str() + ", and compression " +
           std::string(options.compression.name()) +
           " is for gradients in CPU memory. Use none, fp16 or bf16, or a bucket hook.";
  }
  return {};
}

namespace {

std::string problem_with_scales(const DistributedOptimizerOptions& options) {
  if (options.op != ReduceOp::Average && options.op != ReduceOp::Sum &&
      options.op != ReduceOp::Adasum) {
    return "gradients are reduced by Average, Sum or Adasum, not " +
           std::string(name_of(options.op));
  }
  if (options.backward_passes_per_step < 1) {
    return "backward_passes_per_step is " + std::to_string(options.backward_passes_per_step) +
           ", it must be 1 or more";
  }
  const bool is_predivided = options.gradient_predivide_factor != 1.0;
  if (!(options.gradient_predivide_factor > 0.0) ||
      (is_predivided && options.op != ReduceOp::Average)) {
    return "gradient_predivide_factor is " + exact_text(options.gradient_predivide_factor) +
           "; it must be positive, and 1 unless op is Average";
  }
  return {};
}

std::string problem_with_precision(const DistributedOptimizerOptions& options) {
  if (!options.reduce_dtype || options.reduce_dtype == at::kFloat ||
      options.reduce_dtype == at::kDouble) {
    return {};
  }
  return std::string("reduce_dtype is ") + c10::toString(*options.reduce_dtype) +
         "; it must be float32 or float64. To send fewer bytes, set compression.";
}

std::string problem_with_groups(WrappedOptimizer& optimizer,
                                const DistributedOptimizerOptions& options) {
  if (options.unit_policy) {
    return options.groups.empty() ? "unit_policy needs a model. Construct the optimizer with one."
                                  : "groups and unit_policy are both given. Give one of them.";
  }
  std::unordered_set<const void*> known;
  for (const auto& group : optimizer.groups()) {
    for (const at::Tensor& parameter : group.params())
      known.insert(parameter.unsafeGetTensorImpl());
  }
  std::unordered_set<const void*> grouped;
  for (std::size_t i = 0; i < options.groups.size(); ++i) {
    for (const at::Tensor& tensor : options.groups[i]) {
      const std::string where = "a tensor of groups[" + std::to_string(i) + "] ";
      if (tensor.requires_grad() && !known.contains(tensor.unsafeGetTensorImpl())) {
        return where + "is not a parameter of the optimizer. Remove it.";
      }
      if (!grouped.insert(tensor.unsafeGetTensorImpl()).second) {
        return where + "is in a group already. List it once.";
      }
    }
  }
  return {};
}

std::string problem_with_names(const DistributedOptimizer::NamedParameters& names) {
  std::unordered_set<std::string> seen;
  for (const auto& [name, tensor] : names) {
    if (!tensor.defined()) return "the tensor named '" + name + "' is undefined";
    if (name.find('\0') != std::string::npos) return "a name contains a zero byte";
    if (!seen.insert(name).second) return "two parameters are named '" + name + "'. Rename one.";
  }
  return {};
}

/// The name of the parameter in each storage.
using Storages = std::unordered_map<const void*, std::string>;

/// The reason why a parameter's elements cannot be moved into sharded memory; empty if they can.
std::string problem_with_storage(const ReducedParameter& parameter, Storages& storages) {
  const at::Tensor& tensor = parameter.tensor;
  if (!has_own_storage(tensor)) return "it is not contiguous in a storage of its own";
  const auto [other, is_new] =
      storages.emplace(tensor.storage().unsafeGetStorageImpl(), parameter.name);
  return is_new ? "" : "it shares its storage with parameter '" + other->second + "'";
}

/// A parameter that is listed twice would be stepped once a step if sharded, but twice by LibTorch.
std::string problem_with_members(WrappedOptimizer& optimizer) {
  std::unordered_set<const void*> known;
  std::size_t index = 0;
  for (const auto& group : optimizer.groups()) {
    for (const at::Tensor& parameter : group.params()) {
      if (!known.insert(parameter.unsafeGetTensorImpl()).second) {
        return "parameter " + std::to_string(index) +
               " of the optimizer is in it twice. LibTorch lists tied parameters several times: "
               "pass each once.";
      }
      ++index;
    }
  }
  return {};
}

/// State of a class without serialize() cannot be sharded. Checks one entry.
std::string problem_with_state(WrappedOptimizer& optimizer) {
  for (const auto& group : optimizer.groups()) {
    for (const at::Tensor& parameter : group.params()) {
      if (!optimizer.has_state(parameter)) continue;
      try {
        optimizer.count_accepted(*optimizer.state(parameter));
      } catch (const InvalidArgument& error) {
        return error.what();
      }
      return {};
    }
  }
  return {};
}

std::string problem_with_sharding(WrappedOptimizer& optimizer,
                                  const DistributedOptimizerOptions& options) {
  if (options.accumulation == Accumulation::Reduced && !shards_gradients(*options.shard)) {
    return "accumulation = Reduced requires shard = gradients or full; it is " +
           std::string(name_of(*options.shard)) + ". Use Accumulation::Local.";
  }
  if (options.shard == Shard::None) {
    if (!options.master_weights && !options.offload) return {};
    return std::string(options.master_weights ? "master_weights" : "offload") +
           " concerns the shards of parameters, of which shard = none has none. Use shard = "
           "optimizer, which works with one rank, too.";
  }
  if (options.op == ReduceOp::Adasum) {
    return "op Adasum needs whole gradients, which shard = " +
           std::string(name_of(*options.shard)) + " does not keep. Use Average, or shard = none.";
  }
  if (std::string problem = problem_with_scope(*options.process_set, options.shard_scope);
      !problem.empty()) {
    return problem;
  }
  if (std::string problem = problem_with_members(optimizer); !problem.empty()) return problem;
  return problem_with_state(optimizer);
}

std::string problem_with_fused(const at::Tensor& parameter,
                               const DistributedOptimizerOptions& options) {
  if (!options.fused) return {};
  if (!parameter.is_contiguous()) {
    return "it is not contiguous, which fused = true cannot step. Give the model a contiguous "
           "clone of it.";
  }
  if (parameter.is_complex()) {
    return "it is complex, which fused = true cannot step. Leave out fused.";
  }
  if (*options.shard == Shard::None && options.reduce_dtype &&
      size_of(*dtype_of(*options.reduce_dtype)) > size_of(dtype_of(parameter))) {
    return std::string("its gradient will be ") + c10::toString(*options.reduce_dtype) +
           " by reduce_dtype, with which fused = true cannot step a parameter of another dtype. "
           "Shard the optimizer, or leave out one of them.";
  }
  return {};
}

/// The reason why a parameter cannot be trained; empty if it can. Adds its storage to `storages`.
std::string problem_with_parameter(const ReducedParameter& parameter, const ReducedParameter& first,
                                   const DistributedOptimizerOptions& options, Storages& storages) {
  const at::Tensor& tensor = parameter.tensor;
  if (std::string problem = problem_with_type(tensor); !problem.empty()) return problem;
  if (is_deferred(tensor) && options.process_set->rank() == 0) {
    return "a kolo::deferred model has no elements on this rank, and this is the first of the "
           "process set, whose values all would get. Take a set with the first rank of the node.";
  }
  // backward() has a thread per device: hooks of two devices would race on the state of the step.
  if (tensor.device() != first.tensor.device()) {
    return "it lies on " + tensor.device().str() + ", and parameter '" + first.name + "' on " +
           first.tensor.device().str() +
           ". Move the model to one device, or wrap an optimizer for each.";
  }
  if (options.op == ReduceOp::Adasum && !tensor.is_cpu()) {
    return "it lies on " + tensor.device().str() +
           ", and op Adasum is for gradients in CPU memory. Use Average or Sum.";
  }
  if (GradientReducer::reduces(tensor)) {
    return "it belongs to another DistributedOptimizer already. Destroy that one first, or leave "
           "the parameter out of one of them.";
  }
  if (*options.shard != Shard::None) {
    if (const std::string problem = problem_with_storage(parameter, storages); !problem.empty()) {
      return problem + ", which shard = " + std::string(name_of(*options.shard)) +
             " cannot move. Give the model a contiguous clone of it.";
    }
  }
  if (std::string problem = problem_with_fused(tensor, options); !problem.empty()) return problem;
  if (tensor.is_conj() || tensor.is_neg()) {
    return "it is a lazy conjugate or negative. Give the model a clone of it.";
  }
  const DType dtype = dtype_of(tensor);
  if (is_floating(dtype) || is_complex(dtype)) return {};
  return "gradients of " + std::string(name_of(dtype)) +
         " parameters cannot be reduced. Exclude it, or make it floating.";
}

/// Ranks submit buckets as their gradients arrive.
std::string problem_with_process_set(const DistributedOptimizerOptions& options) {
  if (member_set(options.process_set).matching() == Matching::ByName) return {};
  return "its process set matches operations by their order (Matching::ByOrder), and ranks may "
         "submit buckets in different orders. Give it a set that matches them by name.";
}

}  // namespace

std::string problem_with(WrappedOptimizer& optimizer,
                         const DistributedOptimizer::NamedParameters& names,
                         const DistributedOptimizerOptions& options) {
  for (const std::string& problem :
       {problem_with_process_set(options), optimizer.problem(options), problem_with_scales(options),
        problem_with_local_sgd(options), problem_with_precision(options),
        problem_with_compression(options), problem_with_compression_scope(options),
        problem_with_groups(optimizer, options), problem_with_names(names),
        problem_with_sharding(optimizer, options)}) {
    if (!problem.empty()) return problem;
  }
  return {};
}

std::string problem_with(const std::vector<ReducedParameter>& parameters,
                         const ReducedParameter& first,
                         const DistributedOptimizerOptions& options) {
  Storages storages;
  for (const ReducedParameter& parameter : parameters) {
    const std::string problem = problem_with_parameter(parameter, first, options, storages);
    if (!problem.empty()) return "parameter '" + parameter.name + "': " + problem;
  }
  return {};
}

}  // namespace kolo::train
