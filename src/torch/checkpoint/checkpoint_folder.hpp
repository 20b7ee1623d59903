#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

/// Checkpoints in a folder: checkpoint-00000007 and so on. One that is being written, or removed, has
/// a name that begins with a dot, so whatever has the name of a checkpoint is whole. For one program
/// at a time; all throw BackendError naming path and cause.
namespace kolo::tensors {

std::filesystem::path checkpoint_name(std::int64_t number);
/// The numbers of all checkpoints there, ascending.
std::vector<std::int64_t> list_checkpoints(const std::filesystem::path& folder);

/// Makes `folder` if need be, removes what attempts that died have left there, and makes a folder
/// for the files of a new checkpoint, whose name it returns.
std::filesystem::path begin_checkpoint(const std::filesystem::path& folder);
/// Makes a checkpoint, the newest, of the folder of that name. Its files must be on the disk.
void publish_checkpoint(const std::filesystem::path& folder, const std::filesystem::path& name);
/// Removes all but the newest `keep_last`.
void remove_old_checkpoints(const std::filesystem::path& folder, int keep_last);

}  // namespace kolo::tensors
