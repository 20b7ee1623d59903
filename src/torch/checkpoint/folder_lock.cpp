#include "torch/checkpoint/folder_lock.hpp"

#include <array>
#include <cerrno>
#include <fcntl.h>
#include <string>
#include <string_view>
#include <sys/file.h>
#include <thread>
#include <unistd.h>
#include <utility>

#include "base/log.hpp"
#include "kolo/error.hpp"
#include "torch/checkpoint/file_error.hpp"
#include "torch/checkpoint/printable.hpp"

namespace kolo::tensors {
namespace {

using Clock = std::chrono::steady_clock;

constexpr mode_t kLockMode = 0666;  // minus the umask
constexpr std::size_t kMaxText = 256;
constexpr std::chrono::milliseconds kPause{20};
constexpr std::chrono::seconds kLogAfter{1};

comm::FileDescriptor open_lock(const std::filesystem::path& path, FolderLock::Kind kind) {
  const bool saves = kind == FolderLock::Kind::Save;
  // Network file systems lock only files that are open for writing.
  const int flags = saves ? O_RDWR | O_CREAT : O_RDONLY;
  comm::FileDescriptor file(::open(path.c_str(), flags | O_CLOEXEC | O_NONBLOCK, kLockMode));
  if (!file.is_open() && saves) throw_file_error("open", path);
  return file;
}

enum class LockResult { Locked, Held, Unsupported };

LockResult try_lock(int file, FolderLock::Kind kind) {
  const int operation = kind == FolderLock::Kind::Save ? LOCK_EX : LOCK_SH;
  while (::flock(file, operation | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    return errno == EWOULDBLOCK ? LockResult::Held : LockResult::Unsupported;
  }
  return LockResult::Locked;
}

/// Writes this process's name into the lock file, for another program's error text.
void write_holder(int file) {
  std::array<char, kMaxText> host{};
  ::gethostname(host.data(), host.size() - 1);
  const std::string text =
      "process " + std::to_string(::getpid()) + " on " + std::string(host.data()) + "\n";
  // The lock works without the text, too.
  [[maybe_unused]] const bool is_written =
      ::ftruncate(file, 0) == 0 && ::pwrite(file, text.data(), text.size(), 0) > 0;
}

/// A sentence with the text that `write_holder` wrote, or an empty one.
std::string holder_text(int file) {
  std::array<char, kMaxText> text{};
  const ssize_t size = ::pread(file, text.data(), text.size(), 0);
  if (size <= 0) return {};
  const std::string_view line(text.data(), static_cast<std::size_t>(size));
  return "The last one that saved there is " + std::string(line.substr(0, line.find('\n'))) + ". ";
}

[[noreturn]] void fail(const std::filesystem::path& folder, FolderLock::Duration patience,
                       const std::string& holder) {
  const double seconds = std::chrono::duration<double>(patience).count();
  throw BackendError("another program saves checkpoints into, or loads one from, '" +
                     folder.string() + "', and has not finished for " + std::to_string(seconds) +
                     " s. " + holder +
                     "If it is left over from an earlier job, end it; otherwise give every job "
                     "that saves a folder of its own.");
}

}  // namespace

FolderLock::FolderLock(const std::filesystem::path& folder, Kind kind, Duration patience)
    : file_(open_lock(folder / kLockName, kind)) {
  if (!file_.is_open()) return;
  const auto begin = Clock::now();
  bool is_logged = false;
  for (;;) {
    const LockResult result = try_lock(file_.get(), kind);
    if (result == LockResult::Locked) break;
    if (result == LockResult::Unsupported) return;
    const auto waited = Clock::now() - begin;
    if (waited >= patience) fail(folder, patience, holder_text(file_.get()));
    if (waited >= kLogAfter && !std::exchange(is_logged, true)) {
      KOLO_LOG(Warn) << "waiting for another program that saves checkpoints into, or loads one "
                        "from, '"
                     << printable(folder.string()) << "'. " << printable(holder_text(file_.get()));
    }
    std::this_thread::sleep_for(kPause);
  }
  if (kind == Kind::Save) write_holder(file_.get());
}

FolderLock::~FolderLock() {
  // Closing is not enough if a child of fork() has the file open too.
  if (file_.is_open()) ::flock(file_.get(), LOCK_UN);
}

}  // namespace kolo::tensors
