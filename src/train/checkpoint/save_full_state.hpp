#pragma once

#include <filesystem>
#include <string>

#include "train/checkpoint/training_view.hpp"

namespace kolo::train {

/// Writes all whole tensors of `view` to one safetensors file on rank `root`, a few MiB at a time.
/// Collective over the view's set; `name` is the prefix of operations' names. Throws on all ranks;
/// InvalidArgument if the root is not in the set.
void save_full_state(const TrainingView& view, const std::filesystem::path& file, int root,
                     const std::string& name);

}  // namespace kolo::train
