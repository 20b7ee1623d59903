#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "kolo/process_set.hpp"
#include "torch/wrapped/wrapped_optimizer.hpp"

namespace kolo::tensors {

/// The tensors of a training run that a checkpoint holds.
struct TrainingView {
  using Named = std::vector<std::pair<std::string, at::Tensor>>;
  /// What the wrapped optimizer steps on this rank: a parameter, or a range of its elements.
  struct Leaf {
    std::string name;  ///< of the parameter
    at::Tensor parameter;
    at::Tensor values;   ///< the parameter itself, or a leaf over its memory
    std::int64_t begin;  ///< the leaf's first element in the parameter
  };
  ProcessSet& set;
  ProcessSet& sharded;    ///< ranks that hold different shards
  bool is_sharded;        ///< otherwise every rank holds all state
  bool is_first_replica;  ///< first of the ranks that hold the same shards
  Named parameters;       ///< each once
  Named frozen;           ///< of them those in one copy that have no leaves
  Named buffers;
  std::map<std::string, std::string> aliases;  ///< other names of tied parameters
  std::vector<Leaf> leaves;
  WrappedOptimizer& wrapped;
};

/// The names of tensors in a checkpoint.
inline std::string model_key(const std::string& name) { return "model." + name; }
inline constexpr std::string_view kStatePrefix = "optimizer.";
inline std::string state_key(const std::string& field, const std::string& name) {
  return std::string(kStatePrefix) + field + "." + name;
}

}  // namespace kolo::tensors
