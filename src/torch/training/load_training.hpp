#pragma once

#include <filesystem>
#include <string>

#include "kolo/torch/checkpoint.hpp"
#include "torch/training/saved_state.hpp"
#include "torch/training/training_view.hpp"

namespace kolo::tensors {

/// Throws InvalidArgument, naming the first difference, unless a checkpoint has everything that the
/// program needs, in its shape and dtype, and, with options.strict, nothing else. Not collective.
void require_fit(const TrainingView& view, const SavedTraining& saved, const LoadOptions& options);

/// Verifies a checkpoint's checksums, then loads parameters, buffers, optimizer state and
/// generators. Collective over the set; `name` is the prefix of operation names. Throws the errors
/// of Checkpoint on all ranks.
void load_training(const TrainingView& view, const SavedTraining& saved, const LoadOptions& options,
                   const std::string& name);

/// Loads parameters and buffers by name from a file named *.safetensors, or from one that
/// torch::save wrote from a module. Collective; errors as above.
void load_model_file(const TrainingView& view, const std::filesystem::path& file, bool strict,
                     const std::string& name);

}  // namespace kolo::tensors
