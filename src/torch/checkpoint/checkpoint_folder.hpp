#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

/// Checkpoints in a folder: checkpoint-00000007 and so on. One that is being written, or removed, has
/// a name that begins with a dot, so whatever has the name of a checkpoint is whole. This holds for
/// any number of programs: each writes into a folder of its own, and nobody removes a file before he
/// has given the folder it is in another name, after which it cannot be published. All throw
/// BackendError naming path and cause.
namespace kolo::tensors {

std::filesystem::path checkpoint_name(std::int64_t number);
/// The numbers of all checkpoints there, ascending.
std::vector<std::int64_t> list_checkpoints(const std::filesystem::path& folder);

/// Removes what attempts that died have left in `folder`, and makes a folder for the files of a new
/// checkpoint, whose name it returns.
std::filesystem::path begin_checkpoint(const std::filesystem::path& folder);
/// Makes a checkpoint, the newest, of the folder of that name. Its files must be on the disk.
/// Throws where another program has removed it.
void publish_checkpoint(const std::filesystem::path& folder, const std::filesystem::path& name);
/// Takes their names from all but the newest `keep_last`.
void retire_checkpoints(const std::filesystem::path& folder, int keep_last);
/// Removes the file of that name, if it is there, from all that have been retired.
void remove_retired(const std::filesystem::path& folder, const std::string& file);
/// Removes all that lies in `folder` of checkpoints that were not finished, or have been retired.
void remove_leftovers(const std::filesystem::path& folder);

}  // namespace kolo::tensors
