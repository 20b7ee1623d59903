#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

/// How files and folders get their names: the model in one file, and the checkpoints in a folder,
/// checkpoint-00000007 and so on.
///
/// Invariant: whatever has its final name is complete. What is being written or removed has a
/// hidden name (it begins with a dot). The invariant holds with any number of programs: each writes
/// under a hidden name of its own, and a program renames what it removes first, so that another one
/// that still writes it can no longer publish it.
///
/// All functions throw BackendError, which names path and cause.
namespace kolo::checkpoints {

/// A new file or folder under a hidden name, at which its owner creates it. The destructor removes
/// it unless it has been published.
class Draft {
 public:
  /// Of a file with this final name, or, without one, of a folder. The hidden name is random, so
  /// that programs that write the same file do not publish each other's draft, and a late rank of
  /// an abandoned attempt does not find its folder again.
  explicit Draft(std::filesystem::path folder, const std::string& name = {});
  Draft(const Draft&) = delete;  // published or removed once
  Draft& operator=(const Draft&) = delete;
  ~Draft();

  const std::filesystem::path& path() const { return path_; }

  /// Gives it a name in its folder and returns true, or returns false if a folder has that name. A
  /// file of that name is replaced. The contents must be on the disk; the name is when this
  /// returns. Throws if another program has removed the draft.
  bool publish(const std::filesystem::path& name);
  /// Gives a folder the name of the next checkpoint, which it returns.
  std::string publish_as_next_checkpoint();

 private:
  std::filesystem::path folder_;
  std::filesystem::path path_;
  bool is_published_ = false;
};

/// Removes what interrupted attempts to write the file `name` have left in `folder`; without a
/// name, all drafts and retired checkpoints there.
void remove_leftovers(const std::filesystem::path& folder, const std::string& name = {});

std::filesystem::path checkpoint_name(std::int64_t number);
/// The numbers of all checkpoints there, ascending.
std::vector<std::int64_t> list_checkpoints(const std::filesystem::path& folder);
/// Renames all checkpoints except the newest `keep_last` to hidden names, for remove_retired.
void retire_checkpoints(const std::filesystem::path& folder, int keep_last);
/// Removes the file of that name from all retired checkpoints that have it.
void remove_retired(const std::filesystem::path& folder, const std::string& file);

}  // namespace kolo::checkpoints
