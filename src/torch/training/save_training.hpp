#pragma once

#include <filesystem>
#include <string>

#include <nlohmann/json.hpp>

#include "torch/training/training_view.hpp"

namespace kolo::tensors {

/// Writes a checkpoint of `view` with `details` besides. Collective over the set; `name` names its
/// operations. Errors are those of write_checkpoint, and InvalidArgument, on all ranks, for state
/// that cannot be written.
void save_training(const TrainingView& view, const std::filesystem::path& folder,
                   nlohmann::json details, int keep_last, const std::string& name);

/// What each rank knows of the optimizer's state besides the elements of its tensors: of every
/// parameter, its numbers and the names of its tensors.
nlohmann::json describe_state(const TrainingView& view);

}  // namespace kolo::tensors
