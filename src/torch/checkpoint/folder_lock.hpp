#pragma once

#include <chrono>
#include <filesystem>

#include "comm/file_descriptor.hpp"

namespace kolo::tensors {

inline constexpr const char* kLockName = ".lock";

/// Keeps other programs from saving into a folder of checkpoints as long as it lives: an flock of its
/// file `.lock`, which stays there. The system releases it when the process dies, however it dies.
///
/// It spares programs the loss of what another one is writing; that no checkpoint is published in
/// part needs no lock (checkpoint_folder.hpp). So a file system that has none is no error.
class FolderLock {
 public:
  enum class Kind {
    Save,  ///< alone
    Load,  ///< beside others that load; none where nobody has saved with a lock
  };
  using Duration = std::chrono::nanoseconds;

  /// Waits at most `patience` for programs that hold it, then throws BackendError with what is known
  /// of them and what to do. Also throws it where the file cannot be made.
  FolderLock(const std::filesystem::path& folder, Kind kind, Duration patience);
  FolderLock(FolderLock&&) noexcept = default;
  FolderLock& operator=(FolderLock&&) = delete;  // released once
  ~FolderLock();

 private:
  comm::FileDescriptor file_;
};

}  // namespace kolo::tensors
