#pragma once

#include <string>
#include <vector>

#include "torch/checkpoint/checkpoint.hpp"
#include "torch/training/training_details.hpp"
#include "torch/training/training_view.hpp"

namespace kolo::tensors {

/// A checkpoint of a training run, of which anybody may have written the details too.
struct SavedTraining {
  const Checkpoint& checkpoint;
  TrainingDetails details;

  /// What it calls the model's tensor `name`: a tied parameter is there under one name.
  const std::string& name_of(const std::string& name) const {
    const auto alias = details.aliases.find(name);
    return alias == details.aliases.end() ? name : alias->second;
  }
};

/// Throws InvalidArgument where the state of a leaf does not fit the program's optimizer. Of known
/// classes it has all fields in their types and the parameter's shape, of others what the optimizer
/// accepts.
void require_same_state(const TrainingView& view, const SavedTraining& saved);

/// The fields of a leaf's state, without values in their tensors; none where the checkpoint has no
/// state for it.
std::vector<StateField> fields_in(const SavedTraining& saved, const TrainingView::Leaf& leaf);

}  // namespace kolo::tensors
