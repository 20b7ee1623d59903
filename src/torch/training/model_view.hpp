#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace kolo::tensors {

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
  /// Whether this rank sets parameters of which the ranks of a node have one copy.
  bool sets_shared_copies = true;

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

}  // namespace kolo::tensors
