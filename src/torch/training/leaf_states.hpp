#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "kolo/collectives.hpp"
#include "torch/training/training_view.hpp"

namespace kolo::train {

/// The optimizer's state of this rank's leaves, and what all ranks know about that of a parameter.
///
/// Ranks may have state of different parameters, also where each has whole ones: with local SGD
/// they train alone.
class LeafStates {
 public:
  /// A tensor of a parameter's state.
  using Key = std::pair<std::string, std::string>;  // parameter, field
  struct Tensor {
    DType dtype = DType::Float32;
    std::vector<std::int64_t> shape;  ///< of all elements, if elementwise
    /// One element for every element of the parameter: ranks have those of their leaves.
    bool is_elementwise = false;
    std::set<int> ranks{};  ///< of the set: those that have it
  };

  /// Runs `work` too, and throws its error on all ranks. Collective over the view's set; one
  /// operation, which `options` name. Throws InvalidArgument on all ranks for state that cannot be
  /// read.
  LeafStates(const TrainingView& view, const OperationOptions& options, const std::string& what,
             const std::function<void()>& work);

  /// The fields of view.leaves[leaf]; none if it has no state.
  const std::vector<StateField>& fields(std::size_t leaf) const { return fields_[leaf]; }
  /// The tensors of all ranks, in the same order on each.
  const std::map<Key, Tensor>& tensors() const { return tensors_; }
  /// Whether every rank has the tensor.
  bool is_everywhere(const Tensor& tensor) const {
    return tensor.ranks.size() == static_cast<std::size_t>(view_.set.size());
  }
  /// Whether this rank is the last that has the tensor: its numbers are kept, too.
  bool is_last_with(const Tensor& tensor) const {
    return *tensor.ranks.rbegin() == view_.set.rank();
  }

  /// For a checkpoint: of every parameter with state on this rank, its numbers, and whether its
  /// tensors are elementwise.
  nlohmann::json describe() const;

 private:
  nlohmann::json own_tensors() const;
  void merge(const std::vector<std::string>& all);

  const TrainingView& view_;
  std::vector<std::vector<StateField>> fields_;  // of each leaf
  std::map<Key, Tensor> tensors_;
};

}  // namespace kolo::train
