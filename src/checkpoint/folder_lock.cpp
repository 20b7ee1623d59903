#include "checkpoint/folder_lock.hpp"

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <fcntl.h>
#include <string>
#include <string_view>
#include <sys/file.h>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>
#include <utility>

#include "base/log.hpp"
#include "checkpoint/files.hpp"
#include "checkpoint/untrusted_text.hpp"
#include "kolo/error.hpp"

namespace kolo::checkpoints {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kMaxText = 256;
constexpr std::string_view kHolder = "process ";
constexpr std::chrono::milliseconds kPause{20};
constexpr std::chrono::seconds kLogAfter{1};

struct stat examine(const std::filesystem::path& path) {
  struct stat about{};
  if (::stat(path.c_str(), &about) != 0) throw_file_error("examine", path);
  return about;
}

/// Throws for a file that another user may have put into a folder in which everyone may write.
void require_trusted(const std::filesystem::path& path, const struct stat& file,
                     const struct stat& folder) {
  const bool is_ours = file.st_uid == ::geteuid() || file.st_uid == folder.st_uid;
  const bool is_open_to_all = (folder.st_mode & S_IWOTH) != 0;
  if (S_ISREG(file.st_mode) && file.st_nlink == 1 && (is_ours || !is_open_to_all)) return;
  throw BackendError("'" + path.string() + "' is not a lock file that this user or the folder's " +
                     "owner has made, so nothing is saved there. Remove it, or save into a folder "
                     "in which only you may write.");
}

/// Opens the lock file and, for saving, creates it.
comm::FileDescriptor open_lock(const std::filesystem::path& path, FolderLock::Kind kind) {
  constexpr int kFlags = O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW;
  if (kind == FolderLock::Kind::Load) {
    return comm::FileDescriptor(::open(path.c_str(), O_RDONLY | kFlags));
  }
  const struct stat folder = examine(path.parent_path());
  // Network file systems lock only files that are open for writing.
  comm::FileDescriptor file(::open(path.c_str(), O_RDWR | O_CREAT | kFlags, S_IRUSR | S_IWUSR));
  if (!file.is_open() && errno == ELOOP) {
    throw BackendError("'" + path.string() +
                       "' is a symbolic link, which Kolo does not follow. Remove it.");
  }
  if (!file.is_open()) throw_file_error("open", path);
  struct stat about{};
  if (::fstat(file.get(), &about) != 0) throw_file_error("examine", path);
  require_trusted(path, about, folder);
  constexpr mode_t kGroup = S_IRGRP | S_IWGRP;
  const mode_t mode = S_IRUSR | S_IWUSR | ((folder.st_mode & S_IWGRP) != 0 ? kGroup : 0);
  if (about.st_uid == ::geteuid() && (about.st_mode & ALLPERMS) != mode) {
    ::fchmod(file.get(), mode);  // it works without, too
  }
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

/// What the lock file says: the program that saves, or nothing.
std::string text_in(int file) {
  std::array<char, kMaxText> text{};
  const ssize_t size = ::pread(file, text.data(), text.size(), 0);
  if (size <= 0) return {};
  const std::string_view line(text.data(), static_cast<std::size_t>(size));
  return std::string(line.substr(0, line.find('\n')));
}

/// Replaces the text in the lock file, for another program's error text. The lock works without it.
void write_text(int file, const std::string& text) {
  const std::string before = text_in(file);
  if (!before.empty() && !before.starts_with(kHolder)) return;
  [[maybe_unused]] const bool is_written =
      ::ftruncate(file, 0) == 0 && ::pwrite(file, text.data(), text.size(), 0) > 0;
}

std::string name_of_host() {
  std::array<char, kMaxText> host{};
  ::gethostname(host.data(), host.size() - 1);
  return host.data();
}

/// A sentence about the program that holds the lock.
std::string holder_text(int file) {
  const std::string text = text_in(file);
  const std::string host = " on " + name_of_host();
  bool saves = text.starts_with(kHolder);
  if (saves && text.ends_with(host)) {  // it may have been killed
    const long process = std::strtol(text.c_str() + kHolder.size(), nullptr, 10);
    saves = process > 0 && (::kill(static_cast<pid_t>(process), 0) == 0 || errno != ESRCH);
  }
  return saves ? "It is " + text + ". " : "It is loading from there. ";
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
  saves_ = kind == Kind::Save;
  if (!saves_) return;
  write_text(file_.get(),
             std::string(kHolder) + std::to_string(::getpid()) + " on " + name_of_host() + "\n");
}

FolderLock::~FolderLock() {
  if (!file_.is_open()) return;
  if (saves_) write_text(file_.get(), "");
  // Closing is not enough if a child of fork() has the file open too.
  ::flock(file_.get(), LOCK_UN);
}

}  // namespace kolo::checkpoints
