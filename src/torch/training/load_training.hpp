#pragma once

#include <filesystem>
#include <string>

#include "kolo/checkpoint.hpp"
#include "torch/training/saved_state.hpp"
#include "torch/training/training_view.hpp"

namespace kolo::tensors {

/// Whether a checkpoint fits a program's training state: all that it wants is there, in its shape
/// and type, and with options.strict nothing else. Throws InvalidArgument with the first thing that
/// does not. Not collective.
void require_fit(const TrainingView& view, const SavedTraining& saved, const LoadOptions& options);

/// Makes parameters, buffers, optimizer state and random numbers what the checkpoint says, after it
/// has found all of it undamaged. Collective over the set; `name` names its operations. Errors are
/// those of Checkpoint, on all ranks.
void load_training(const TrainingView& view, const SavedTraining& saved, const LoadOptions& options,
                   const std::string& name);

/// Makes parameters and buffers what a file has under their names: one that torch::save has written
/// of a module, or a safetensors file, by its ending. Collective, errors as above.
void load_model_file(const TrainingView& view, const std::filesystem::path& file, bool strict,
                     const std::string& name);

}  // namespace kolo::tensors
