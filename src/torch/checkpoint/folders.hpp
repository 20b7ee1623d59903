#pragma once

#include <filesystem>

namespace kolo::tensors {

/// What a crash must not undo. All throw BackendError naming the folder and the cause.

/// Makes the folder, and those above it, where they are missing.
void make_folder(const std::filesystem::path& path);
/// Returns when the folder's list of names is on the disk.
void sync_folder(const std::filesystem::path& path);
/// Renames within one folder, which it syncs. What has the new name already is replaced if it is a
/// file, an error if it is a folder with something in it.
void rename_durably(const std::filesystem::path& from, const std::filesystem::path& to);
/// Removes a file, or a folder with all that is in it.
void remove_tree(const std::filesystem::path& path);

}  // namespace kolo::tensors
