#include "train/optimizer/optimizer_checks.hpp"

#include <cstddef>
#include <string>
#include <unordered_set>

#include <c10/core/ScalarType.h>

#include "base/text.hpp"
#include "kolo/error.hpp"
#include "kolo/process_set.hpp"
#include "runtime/engine/engine.hpp"
#include "train/optimizer/local_sgd.hpp"
#include "train/sharding/parameter_shards.hpp"

namespace kolo::train {

GradientCompression compression_of(const DistributedOptimizerOptions& options) {
  GradientCompression compression{.compression = options.compression};
  try {
    compression.codec = options.process_set->engine()->codec_named(options.compression.name());
  } catch (const InvalidArgument&) {
    // problem_with() reports this on all ranks.
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

namespace {

std::string problem_with_compression(const DistributedOptimizerOptions& options) {
  runtime::Request request;
  request.op = options.op;
  request.compression = options.compression.name();
  request.compression_scope = options.compression_scope;
  try {
    options.process_set->engine()->check(request);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  if (options.compression_scope == CompressionScope::Everywhere) return {};
  if (options.shard == Shard::None || options.shard_scope == ShardScope::Node) return {};
  return "compression_scope is BetweenNodes, and shard = " + std::string(name_of(*options.shard)) +
         " with shard_scope = World scatters gradients over all ranks at once, without regard to "
         "nodes. Use shard_scope = Node, shard = none, or compression_scope = Everywhere.";
}

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
        problem_with_compression(options), problem_with_groups(optimizer, options),
        problem_with_names(names), problem_with_sharding(optimizer, options)}) {
    if (!problem.empty()) return problem;
  }
  return {};
}

}  // namespace kolo::train
