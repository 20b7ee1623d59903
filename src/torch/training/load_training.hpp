#pragma once

#include <filesystem>
#include <string>

#include "kolo/torch/checkpoint.hpp"
#include "torch/checkpoint/checkpoint.hpp"
#include "torch/training/saved_state.hpp"
#include "torch/training/training_view.hpp"

namespace kolo::tensors {

/// Which of the model's parameters and buffers a checkpoint has. Throws InvalidArgument if it has
/// none or, with `strict`, naming the first difference, not exactly these.
Loaded match_model(const TrainingView& view, const SavedTraining& saved, bool strict);

/// Throws InvalidArgument, naming the first difference, unless a checkpoint has everything that the
/// program needs, in its shape and dtype, and, with options.strict, nothing else. Not collective.
void require_fit(const TrainingView& view, const SavedTraining& saved, const LoadOptions& options);

/// Verifies checksums, then loads parameters, buffers, optimizer state and generators of a
/// checkpoint that fits. Collective over the set; `name` is the prefix of operation names. Throws
/// the errors of Checkpoint on all ranks.
void load_training(const TrainingView& view, const SavedTraining& saved,
                   const Checkpoint& checkpoint, const LoadOptions& options,
                   const std::string& name);

/// Loads parameters and buffers by name from a safetensors file, or from one that torch::save wrote
/// from a module. Collective; errors as above.
Loaded load_model_file(const TrainingView& view, const std::filesystem::path& file, bool strict,
                       const std::string& name);

}  // namespace kolo::tensors
