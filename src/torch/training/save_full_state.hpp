#pragma once

#include <filesystem>
#include <string>

#include "torch/training/training_view.hpp"

namespace kolo::tensors {

/// Writes all tensors of `view`, whole, to one safetensors file on the set's rank `root` alone, a
/// few MiB at a time. Collective over the set; `name` names its operations. Errors on all ranks.
void save_full_state(const TrainingView& view, const std::filesystem::path& file, int root,
                     const std::string& name);

}  // namespace kolo::tensors
