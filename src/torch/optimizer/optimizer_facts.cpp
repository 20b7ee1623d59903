#include "torch/optimizer/optimizer_facts.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>

#include <c10/core/ScalarType.h>
#include <c10/util/StringUtil.h>

#include "base/text.hpp"
#include "torch/tensors/deferred.hpp"

namespace kolo::tensors {
namespace {

/// Equal on all ranks, since ranks that keep a deferred model's elements count them, too.
std::ptrdiff_t count_constructed(const std::vector<ReducedParameter>& parameters) {
  return std::ranges::count_if(parameters, [](const ReducedParameter& parameter) {
    return is_constructed(parameter.tensor);
  });
}

std::string text_of(const std::vector<double>& values) {
  std::string text;
  for (const double value : values) {
    std::array<char, 32> digits;  // the fewest that no other value has
    const auto end = std::to_chars(digits.begin(), digits.end(), value).ptr;
    text.append(text.empty() ? "" : ", ").append(digits.begin(), end);
  }
  return text;
}

void append_facts(const std::string& what, const std::vector<ReducedParameter>& parameters,
                  std::vector<Fact>& facts) {
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const ReducedParameter& parameter = parameters[i];
    std::string value = "'" + parameter.name + "', " +
                        c10::toString(parameter.tensor.scalar_type()) + " " +
                        c10::str(parameter.tensor.sizes());
    if (parameter.group != PlannedParameter::kNoGroup) {
      value += " in group " + std::to_string(parameter.group);
    }
    if (!parameter.is_compressed) value += ", not compressed";
    facts.push_back({what + std::to_string(i), std::move(value)});
  }
}

}  // namespace

std::vector<Fact> facts_of(const DistributedOptimizerOptions& options,
                           const std::vector<ReducedParameter>& parameters,
                           const std::vector<ReducedParameter>& frozen) {
  std::vector<Fact> facts{
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

std::vector<Fact> facts_of(const OptionSync& option_sync,
                           const std::vector<ReducedParameter>& parameters) {
  const std::vector<OptionSync::Group>& groups = option_sync.groups();
  std::vector<Fact> facts{{"number of parameter groups", std::to_string(groups.size())}};
  for (std::size_t i = 0; i < groups.size(); ++i) {
    for (const OptionField& option : groups[i].options) {
      facts.push_back({"option " + option.name + " of parameter group " + std::to_string(i),
                       text_of(option.values)});
    }
  }
  for (const ReducedParameter& parameter : parameters) {
    const std::optional<std::size_t> group = option_sync.group_of(parameter.tensor);
    facts.push_back({"parameter group of '" + parameter.name + "'",
                     group ? std::to_string(*group) : std::string("none")});
  }
  return facts;
}

}  // namespace kolo::tensors
