#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "torch/checkpoint/checkpoint_index.hpp"
#include "torch/training/training_details.hpp"
#include "torch/training/training_view.hpp"

namespace kolo::train {

/// What a checkpoint of a training run has. Neither its tensors nor its details are trusted.
struct SavedTraining {
  const CheckpointIndex& index;
  std::filesystem::path path;
  TrainingDetails details;

  bool has(const std::string& key) const { return index.tensors.contains(key); }
  void require(const std::string& key, DType dtype, const std::vector<std::int64_t>& shape) const {
    require_tensor(index, path, key, dtype, shape);
  }

  /// The name in the checkpoint of the model's tensor `name`: a tied parameter has one there.
  const std::string& name_of(const std::string& name) const {
    const auto alias = details.aliases.find(name);
    return alias == details.aliases.end() ? name : alias->second;
  }
};

/// Throws InvalidArgument if the state of a leaf does not match the program's optimizer. Known
/// classes need all fields, in their types and the parameter's shape; other classes decide
/// themselves. State in the dtype of a parameter fits its master copy.
void require_same_state(const TrainingView& view, const SavedTraining& saved);

/// The fields of a leaf's state, with uninitialized tensors; none if the checkpoint has no state
/// for it.
std::vector<StateField> fields_in(const SavedTraining& saved, const TrainingView::Leaf& leaf);

}  // namespace kolo::train
