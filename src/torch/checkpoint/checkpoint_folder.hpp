#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

/// Checkpoints in a folder: checkpoint-00000007 and so on.
///
/// Invariant: every folder named checkpoint-N is complete. A checkpoint that is being written or
/// removed has a hidden name (it begins with a dot). The invariant holds with any number of
/// programs: each writes into a hidden folder of its own, and a program renames a hidden folder
/// before it removes files from it, so that its owner can no longer publish it.
///
/// All functions throw BackendError, which names path and cause.
namespace kolo::train {

std::filesystem::path checkpoint_name(std::int64_t number);
/// The numbers of all checkpoints there, ascending.
std::vector<std::int64_t> list_checkpoints(const std::filesystem::path& folder);

/// Removes leftovers of interrupted saves in `folder`, creates a hidden folder for the files of a
/// new checkpoint, and returns its name in `folder`.
std::filesystem::path begin_checkpoint(const std::filesystem::path& folder);
/// Renames the hidden folder `name` to the next checkpoint-N. Its files must be on the disk.
/// Throws if another program has removed it.
void publish_checkpoint(const std::filesystem::path& folder, const std::filesystem::path& name);
/// Renames all checkpoints except the newest `keep_last` to hidden names, for remove_retired.
void retire_checkpoints(const std::filesystem::path& folder, int keep_last);
/// Removes the file of that name from all retired checkpoints that have it.
void remove_retired(const std::filesystem::path& folder, const std::string& file);
/// Removes all unfinished and retired checkpoints in `folder`.
void remove_leftovers(const std::filesystem::path& folder);

}  // namespace kolo::train
