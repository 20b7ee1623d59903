#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include "kolo/process_set.hpp"

namespace kolo::tensors {

/// What a training run consists of, as checkpoints see it.
struct TrainingView {
  using Named = std::vector<std::pair<std::string, at::Tensor>>;
  /// Elements of a parameter whose optimizer state this rank has.
  struct Part {
    std::string name;    ///< of the parameter
    at::Tensor whole;    ///< the parameter
    at::Tensor values;   ///< what the optimizer knows: the parameter, or a piece of it
    std::int64_t begin;  ///< the first of them among those of the parameter
  };
  ProcessSet& set;
  ProcessSet& divided;        ///< ranks that have different parts
  bool is_divided;            ///< parts are pieces; otherwise every rank has all
  bool is_first_of_replicas;  ///< among ranks that have the same parts
  Named parameters;           ///< each once
  Named buffers;
  std::map<std::string, std::string> aliases;  ///< other names of tied parameters
  std::vector<Part> parts;
  torch::optim::Optimizer& wrapped;
};

/// The names of tensors in a checkpoint.
inline std::string model_key(const std::string& name) { return "model." + name; }
inline constexpr std::string_view kStatePrefix = "optimizer.";
inline std::string state_key(const std::string& field, const std::string& name) {
  return std::string(kStatePrefix) + field + "." + name;
}

}  // namespace kolo::tensors
