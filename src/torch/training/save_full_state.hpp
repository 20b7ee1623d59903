#pragma once

#include <filesystem>
#include <string>

#include "torch/training/training_view.hpp"

namespace kolo::tensors {

/// Writes all whole tensors of `view` to one safetensors file on the set's rank `root`, a few MiB
/// at a time. Collective over the set; `name` is the prefix of operations' names. Throws on all
/// ranks.
void save_full_state(const TrainingView& view, const std::filesystem::path& file, int root,
                     const std::string& name);

}  // namespace kolo::tensors
