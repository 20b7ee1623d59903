#pragma once

#include <filesystem>

namespace kolo::train {

/// Changes to folders that survive a crash. All throw BackendError naming the folder and the cause.

/// Creates the folder and those above it if they are missing.
void make_folder(const std::filesystem::path& path);
/// Blocks until the folder's list of names is on the disk.
void sync_folder(const std::filesystem::path& path);
/// Renames within one folder and syncs it. Replaces a file of the new name; a folder of that name
/// that is not empty is an error.
void rename_durably(const std::filesystem::path& from, const std::filesystem::path& to);
/// Removes a file, or a folder with its contents.
void remove_tree(const std::filesystem::path& path);

}  // namespace kolo::train
