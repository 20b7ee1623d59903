#pragma once

#include <string>
#include <vector>

#include "torch/training/saved_state.hpp"
#include "torch/training/training_view.hpp"

namespace kolo::tensors {

/// What a checkpoint holds of one of this rank's residuals.
struct SavedResidual {
  const TrainingView::Residual* target;
  std::vector<std::string> keys;  ///< of the tensors whose sum it gets
};

/// The saved residuals that this rank takes over: copy i of those that were saved goes to copy
/// i mod n of the n that there are now. Throws InvalidArgument if a tensor is not that of its
/// parameter.
std::vector<SavedResidual> find_residuals(const TrainingView& view, const SavedTraining& saved);

/// Verifies the checksums of what load_residuals() reads. Throws the errors of Checkpoint.
void verify_residuals(const std::vector<SavedResidual>& residuals, const SavedTraining& saved);

/// Replaces the residuals of `view` by their sums, and by zeros where none was saved. Corrects them
/// for averages over another number of ranks.
void load_residuals(const TrainingView& view, const std::vector<SavedResidual>& residuals,
                    const SavedTraining& saved);

}  // namespace kolo::tensors
