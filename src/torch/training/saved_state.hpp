#pragma once

#include <string>
#include <vector>

#include "torch/checkpoint/checkpoint.hpp"
#include "torch/sharding/state_fields.hpp"
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

/// Throws InvalidArgument where the state of a part is not that of the program's optimizer: for
/// LibTorch's classes all fields in their types and the parameter's shape, for others what their
/// serialize() takes.
void require_same_state(const TrainingView& view, const SavedTraining& saved);

/// The fields of a part's state; their tensors have no values yet. None where the checkpoint has no
/// state of it.
std::vector<StateField> fields_in(const SavedTraining& saved, const TrainingView::Part& part);

}  // namespace kolo::tensors
