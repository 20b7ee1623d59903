#pragma once

#include <filesystem>
#include <string>

#include <nlohmann/json.hpp>

#include "torch/checkpoint/write_checkpoint.hpp"
#include "torch/training/training_view.hpp"

namespace kolo::train {

/// Writes a checkpoint of `view` and `details`. Collective over the set; `name` is the prefix of
/// operations' names. Throws the errors of write_checkpoint, and InvalidArgument on all ranks for
/// state that cannot be serialized and names that JSON cannot hold.
void save_training(const TrainingView& view, const std::filesystem::path& folder,
                   nlohmann::json details, int keep_last, const RequireLoadable& require_loadable,
                   const std::string& name);

/// Throws InvalidArgument for a parameter or buffer whose name is not UTF-8: no file can hold it.
void require_storable_names(const TrainingView& view);

/// Writes all whole tensors of `view` to one safetensors file on the set's rank `root`, a few MiB
/// at a time. Collective over the set; `name` is the prefix of operations' names. Throws on all
/// ranks.
void save_full_state(const TrainingView& view, const std::filesystem::path& file, int root,
                     const std::string& name);

}  // namespace kolo::train
