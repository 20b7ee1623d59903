#pragma once

#include <chrono>
#include <filesystem>

#include "comm/file_descriptor.hpp"

namespace kolo::checkpoints {

inline constexpr const char* kLockName = ".lock";

/// Holds an flock on the file `.lock` of a folder of checkpoints, so that one program saves into it
/// at a time. The kernel releases the lock when the process ends, however it ends; the file stays.
///
/// Other users may have access to the folder. Whoever can read a file can lock it, so only those
/// who may write to the folder can read this one; another user's `load` takes no lock. Links are
/// not followed, and no file is written to but one that holds what Kolo writes.
///
/// Without the lock, a program could remove the unfinished checkpoint of another one. A published
/// checkpoint is complete even then (publish.hpp), so a file system without flock is no
/// error.
class FolderLock {
 public:
  enum class Kind {
    Save,  ///< exclusive
    Load,  ///< shared; takes no lock if there is no lock file
  };
  using Duration = std::chrono::nanoseconds;

  /// Waits at most `patience` for other holders, then throws BackendError, naming the program that
  /// saves, if one does, and saying what to do. Also throws it if the file cannot be created or may
  /// be a trap.
  FolderLock(const std::filesystem::path& folder, Kind kind, Duration patience);
  FolderLock(FolderLock&&) noexcept = default;
  FolderLock& operator=(FolderLock&&) = delete;  // released once
  ~FolderLock();

 private:
  comm::FileDescriptor file_;
  bool saves_ = false;
};

}  // namespace kolo::checkpoints
