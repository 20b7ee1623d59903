#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "kolo/torch/checkpoint.hpp"
#include "torch/checkpoint/checkpoint.hpp"
#include "torch/checkpoint/on_all_ranks.hpp"
#include "torch/training/saved_state.hpp"
#include "torch/training/training_view.hpp"

namespace kolo::train {

/// Which of the model's parameters and buffers a checkpoint has. Throws InvalidArgument if it has
/// none or, with `strict`, naming the first difference, not exactly these.
Loaded match_model(const ModelView& model, const SavedTraining& saved, bool strict);

/// State there of parameters that the program's optimizer does not step: names of tensors. Throws
/// InvalidArgument for any, if `strict`.
std::vector<std::string> unused_state(const TrainingView& view, const SavedTraining& saved,
                                      bool strict);

/// Throws InvalidArgument, naming the first difference, unless a checkpoint has everything that the
/// program needs, in its shape and dtype, and, with options.strict, nothing else. Not collective.
void require_fit(const TrainingView& view, const SavedTraining& saved, const LoadOptions& options);

/// Verifies checksums, then loads parameters, buffers, optimizer state and generators of a
/// checkpoint that fits. Collective over the set, which the readers are. Throws the errors of
/// Checkpoint on all ranks.
void load_training(const TrainingView& view, const SavedTraining& saved,
                   const Checkpoint& checkpoint, const LoadOptions& options,
                   const Readers& readers);

/// What this process sees under a path, in words that ranks can compare; opening it has the better
/// error text.
std::string kind_of(const std::filesystem::path& path);
/// Whether load_model_file() loads what is of this kind; otherwise it may be a checkpoint.
bool is_of_a_model(const std::string& kind);

/// Loads parameters and buffers by name from a file that holds nothing else, or a folder of such
/// files: see DistributedOptimizer::load. Collective if the readers are several ranks; errors as
/// above.
Loaded load_model_file(const ModelView& model, const std::filesystem::path& path, bool strict,
                       const Readers& readers);

}  // namespace kolo::train
