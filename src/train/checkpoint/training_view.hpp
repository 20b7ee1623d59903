#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "kolo/process_set.hpp"
#include "kolo/torch/bucket_hook.hpp"
#include "train/tensors/parameter_storage.hpp"
#include "train/wrapped/wrapped_optimizer.hpp"

namespace kolo::train {

/// The tensors of a model that a checkpoint holds.
struct ModelView {
  using Named = std::vector<std::pair<std::string, at::Tensor>>;
  /// A range of the elements of a fully sharded parameter, which is on this rank.
  struct Share {
    std::string name;  ///< of the parameter
    at::Tensor parameter;
    at::Tensor elements;
    std::int64_t begin;  ///< the first one in the parameter
  };
  Named parameters;  ///< each once
  Named buffers;
  std::map<std::string, std::string> aliases;  ///< other names of tied parameters
  std::vector<Share> shares;
  /// Parameters sharded by this optimizer. Others may be sharded by another one.
  std::unordered_set<std::string> sharded{};
  /// Whether this rank sets parameters of which the ranks of a node have one copy.
  bool sets_shared_copies = true;

  /// Whether this optimizer gathers the parameter on use.
  bool gathers(const std::string& name, const at::Tensor& parameter) const {
    return is_gathered_on_use(parameter) && sharded.contains(name);
  }
  /// Whether a load sets the tensor: otherwise another optimizer gathers it, and its load() does.
  bool sets(const std::string& name, const at::Tensor& tensor) const {
    return tensor.numel() == 0 || !is_gathered_on_use(tensor) || gathers(name, tensor);
  }

  /// Adds parameters; of several names of one tensor, the first counts.
  void add_parameters(const Named& named) {
    std::unordered_map<const void*, std::string> known;
    for (const auto& [name, tensor] : parameters) known.emplace(tensor.unsafeGetTensorImpl(), name);
    for (const auto& [name, tensor] : named) {
      const auto [first, is_new] = known.emplace(tensor.unsafeGetTensorImpl(), name);
      if (is_new) {
        parameters.emplace_back(name, tensor);
      } else if (first->second != name) {
        aliases[name] = first->second;
      }
    }
  }
};

/// The tensors of a training run that a checkpoint holds.
struct TrainingView {
  /// A tensor that the wrapped optimizer steps: a parameter, or a range of its elements.
  struct Leaf {
    std::string name;  ///< of the parameter
    at::Tensor parameter;
    at::Tensor elements;  ///< the parameter itself, or the leaf's part of its memory
    at::Tensor values;    ///< the stepped tensor: the same, or a master copy
    std::int64_t begin;   ///< the leaf's first element in the parameter
    /// The dtype of `values`, also before parameters are sharded and master copies made.
    at::ScalarType stepped_dtype;
    at::Tensor master;  ///< the master copy, if there is one: `values`, or of a whole parameter

    /// Whether it is a parameter that every rank steps.
    bool is_whole() const { return values.is_same(parameter); }
  };
  /// The residual of a range of a parameter's elements on this rank.
  struct Residual {
    std::string name;  ///< of the parameter
    at::Tensor parameter;
    at::Tensor elements;  ///< [n], float32
    std::int64_t begin;   ///< the first one in the parameter
  };
  /// There are several copies of a model's residuals: one per rank, or one per node.
  struct Residuals {
    std::vector<Residual> own;
    int copy = 0;  ///< this rank's
    int copies = 1;
    bool are_averaged = false;  ///< over all ranks, when they are applied
  };
  ProcessSet& set;
  ProcessSet& sharded;    ///< ranks that hold different shards
  bool is_first_replica;  ///< first of the ranks that hold the same shards
  ModelView model;
  ModelView::Named mastered;  ///< parameters with master copies, see DistributedOptimizerOptions
  /// What this rank steps; whole parameters that are frozen or not sharded yet, on each rank.
  std::vector<Leaf> leaves;
  std::unordered_set<std::string> stepped_names;  ///< the parameters of all ranks' leaves
  std::vector<std::vector<std::string>> groups;   ///< the members of each parameter group
  Residuals residuals;
  const BucketHook& hook;
  WrappedOptimizer& wrapped;
};

/// The names of tensors in a checkpoint.
inline std::string model_key(const std::string& name) { return "model." + name; }
inline std::string master_key(const std::string& name) { return "master." + name; }
inline constexpr std::string_view kHookPrefix = "hook.";
inline std::string residual_key(int copy, const std::string& name) {
  return "residual." + std::to_string(copy) + "." + name;
}
inline constexpr std::string_view kStatePrefix = "optimizer.";
inline std::string state_key(const std::string& field, const std::string& name) {
  return std::string(kStatePrefix) + field + "." + name;
}

}  // namespace kolo::train
