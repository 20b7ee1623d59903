#include "train/gradients/parameter_checks.hpp"

#include <algorithm>
#include <cstddef>
#include <exception>
#include <optional>
#include <unordered_map>
#include <utility>

#include <c10/core/ScalarType.h>
#include <c10/util/StringUtil.h>

#include "base/text.hpp"
#include "kolo/process_set.hpp"
#include "train/gradients/grad_hooks.hpp"
#include "train/tensors/deferred.hpp"
#include "train/tensors/parameter_storage.hpp"
#include "train/tensors/tensor_memory.hpp"

namespace kolo::train {

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
  if (GradHooks::are_on(tensor)) {
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

}  // namespace

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

namespace {

/// Equal on all ranks, since ranks that keep a deferred model's elements count them, too.
std::ptrdiff_t count_constructed(const std::vector<ReducedParameter>& parameters) {
  return std::ranges::count_if(parameters, [](const ReducedParameter& parameter) {
    return is_constructed(parameter.tensor);
  });
}

void append_facts(const std::string& what, const std::vector<ReducedParameter>& parameters,
                  std::vector<NamedValue>& facts) {
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const ReducedParameter& parameter = parameters[i];
    std::string value = "'" + parameter.name + "', " +
                        c10::toString(parameter.tensor.scalar_type()) + " " +
                        c10::str(parameter.tensor.sizes());
    if (parameter.group != PlannedParameter::kNoGroup) {
      value += " in group " + std::to_string(parameter.group);
    }
    if (!parameter.is_compressed) value += ", not compressed";
    if (parameter.is_whole) value += ", whole";
    facts.push_back({what + std::to_string(i), std::move(value)});
  }
}

}  // namespace

std::vector<NamedValue> facts_of(const DistributedOptimizerOptions& options,
                                 const std::vector<ReducedParameter>& parameters,
                                 const std::vector<ReducedParameter>& frozen) {
  std::vector<NamedValue> facts{
      {"op", std::string(name_of(options.op))},
      {"backward_passes_per_step", std::to_string(options.backward_passes_per_step)},
      {"local_sgd.period", std::to_string(options.local_sgd.period)},
      {"local_sgd.start_step", std::to_string(options.local_sgd.start_step)},
      {"gradient_predivide_factor", exact_text(options.gradient_predivide_factor)},
      {"compression", std::string(options.compression.name())},
      {"compression_scope", std::string(name_of(options.compression_scope))},
      {"error_feedback", options.error_feedback ? "true" : "false"},
      {"join_divisor", options.join_divisor == JoinDivisor::World ? "World" : "Active"},
      {"shard", std::string(name_of(*options.shard))},
      {"shard_scope", options.shard_scope == ShardScope::World ? "World" : "Node"},
      {"accumulation", options.accumulation == Accumulation::Local ? "Local" : "Reduced"},
      {"reshard_after_forward", options.reshard_after_forward ? "true" : "false"},
      {"reduce_dtype", options.reduce_dtype ? c10::toString(*options.reduce_dtype) : "none"},
      {"master_weights", options.master_weights ? "true" : "false"},
      {"offload", options.offload ? "true" : "false"},
      {"fused", options.fused ? "true" : "false"},
      {"sparse_as_dense", options.sparse_as_dense ? "true" : "false"},
      {"bucket_bytes", std::to_string(options.bucket_bytes)},
      {"device", parameters.empty() || parameters.front().tensor.is_cpu() ? "cpu" : "cuda"},
      {"parameters of a deferred model", std::to_string(count_constructed(parameters))},
      {"number of parameters", std::to_string(parameters.size())},
  };
  append_facts("parameter ", parameters, facts);
  if (options.shard != Shard::Full) return facts;
  facts.push_back({"number of frozen parameters", std::to_string(frozen.size())});
  append_facts("frozen parameter ", frozen, facts);
  return facts;
}

std::vector<NamedValue> facts_of(const OptionSync& option_sync,
                                 const std::vector<ReducedParameter>& parameters) {
  const std::vector<OptionSync::Group>& groups = option_sync.groups();
  std::vector<NamedValue> facts{{"number of parameter groups", std::to_string(groups.size())}};
  for (std::size_t i = 0; i < groups.size(); ++i) {
    for (const OptionField& option : groups[i].options) {
      facts.push_back({"option " + option.name + " of parameter group " + std::to_string(i),
                       exact_text(option.values)});
    }
  }
  for (const ReducedParameter& parameter : parameters) {
    const std::optional<std::size_t> group = option_sync.group_of(parameter.tensor);
    facts.push_back({"parameter group of '" + parameter.name + "'",
                     group ? std::to_string(*group) : std::string("none")});
  }
  return facts;
}

}  // namespace kolo::train
