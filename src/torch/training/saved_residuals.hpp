#pragma once

#include <string>
#include <vector>

#include "torch/checkpoint/checkpoint.hpp"
#include "torch/training/saved_state.hpp"
#include "torch/training/training_view.hpp"

namespace kolo::train {

/// The tensors in a checkpoint that one of this rank's residuals is loaded from.
struct SavedResidual {
  const TrainingView::Residual* target;
  std::vector<std::string> keys;  ///< of the tensors whose sum it gets
};

/// The saved residuals that this rank loads: saved copy i is added to copy i mod n of the n current
/// ones. Throws InvalidArgument if a tensor does not match its parameter.
std::vector<SavedResidual> find_residuals(const TrainingView& view, const SavedTraining& saved);

/// Verifies the checksums of the tensors that load_residuals() reads. Throws the errors of
/// Checkpoint.
void verify_residuals(const std::vector<SavedResidual>& residuals, const Checkpoint& checkpoint);

/// Replaces the residuals of `view` with the saved sums, or with zeros where none was saved.
/// Rescales them for averages over another number of ranks.
void load_residuals(const TrainingView& view, const std::vector<SavedResidual>& residuals,
                    const SavedTraining& saved, const Checkpoint& checkpoint);

}  // namespace kolo::train
