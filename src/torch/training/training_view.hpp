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
    at::Tensor elements;  ///< the parameter itself, or the leaf's part of its memory
    at::Tensor values;    ///< what is stepped: the same, or a master copy
    std::int64_t begin;   ///< the leaf's first element in the parameter

    bool has_master() const { return values.scalar_type() != elements.scalar_type(); }
  };
  ProcessSet& set;
  ProcessSet& sharded;    ///< ranks that hold different shards
  bool is_sharded;        ///< otherwise every rank holds all state
  bool is_first_replica;  ///< first of the ranks that hold the same shards
  bool has_masters;       ///< of parameters of 16 bits, see DistributedOptimizerOptions
  Named parameters;       ///< each once
  Named frozen;           ///< of them those in one copy that have no leaves
  Named buffers;
  std::map<std::string, std::string> aliases;  ///< other names of tied parameters
  std::vector<Leaf> leaves;
  WrappedOptimizer& wrapped;
};

/// The names of tensors in a checkpoint.
inline std::string model_key(const std::string& name) { return "model." + name; }
inline std::string master_key(const std::string& name) { return "master." + name; }
inline constexpr std::string_view kStatePrefix = "optimizer.";
inline std::string state_key(const std::string& field, const std::string& name) {
  return std::string(kStatePrefix) + field + "." + name;
}

}  // namespace kolo::tensors
