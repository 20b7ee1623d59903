#include "checkpoint/files.hpp"

#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>
#include <utility>

#include "base/held_signal.hpp"
#include "kolo/error.hpp"

namespace kolo::checkpoints {
namespace {

constexpr std::size_t kSmallBytes = std::size_t{128} << 10;
constexpr std::int64_t kBatchBytes = std::int64_t{8} << 20;
constexpr mode_t kReadWrite = 0666;  // minus the umask
constexpr mode_t kAll = 0777;        // minus the umask

std::filesystem::path parent_of(const std::filesystem::path& path) {
  const std::filesystem::path parent = path.parent_path();
  return parent.empty() ? "." : parent;
}

}  // namespace

void throw_file_error(const std::string& action, const std::filesystem::path& path, int error) {
  throw BackendError("cannot " + action + " '" + path.string() + "': " + std::strerror(error));
}

FileReader::FileReader(std::filesystem::path path)
    : path_(std::move(path)),
      // Do not wait for a pipe of this name.
      file_(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
  if (!file_.is_open()) {
    if (errno != ENOENT && errno != ENOTDIR) throw_file_error("open", path_);
    throw InvalidArgument("file '" + path_.string() + "' is missing");
  }
  struct stat about{};
  if (::fstat(file_.get(), &about) != 0) throw_file_error("examine", path_);
  if (!S_ISREG(about.st_mode)) throw InvalidArgument("'" + path_.string() + "' is not a file");
  size_ = about.st_size;
}

void FileReader::read(std::int64_t offset, std::int64_t bytes, void* target) const {
  std::byte* place = static_cast<std::byte*>(target);
  while (bytes > 0) {
    const ssize_t got = ::pread(file_.get(), place, static_cast<std::size_t>(bytes), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw_file_error("read", path_);
    if (got == 0) {
      throw InvalidArgument("file '" + path_.string() + "' is truncated: it ends before byte " +
                            std::to_string(offset + bytes));
    }
    place += got;
    offset += got;
    bytes -= got;
  }
}

std::string FileReader::read_text(std::int64_t most) const {
  if (size_ > most) {
    throw InvalidArgument("it has " + std::to_string(size_) + " bytes, more than " +
                          std::to_string(most));
  }
  std::string text(static_cast<std::size_t>(size_), '\0');
  read(0, size_, text.data());
  return text;
}

FileWriter::FileWriter(std::filesystem::path path, std::int64_t bytes)
    : path_(std::move(path)),
      file_(::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, kReadWrite)) {
  if (!file_.is_open()) throw_file_error("create", path_);
  if (bytes > 0) reserve(bytes);
}

/// Reserves the file's blocks: adjacent blocks are faster to write and to free, and a full disk is
/// an error now, not later.
void FileWriter::reserve(std::int64_t bytes) {
  const HeldSignal too_large(SIGXFSZ);
  int result = 0;
  do {
    result = ::fallocate(file_.get(), 0, 0, bytes);
  } while (result != 0 && errno == EINTR);
  // posix_fallocate() would write zeros if the file system cannot reserve blocks.
  if (result != 0 && errno != EOPNOTSUPP && errno != ENOSYS) {
    throw_file_error("reserve " + std::to_string(bytes) + " bytes for", path_);
  }
}

void FileWriter::append(const void* data, std::size_t bytes) {
  const std::byte* begin = static_cast<const std::byte*>(data);
  if (small_.size() + bytes < kSmallBytes) {
    small_.insert(small_.end(), begin, begin + bytes);
    return;
  }
  write_out(small_.data(), small_.size());
  small_.clear();
  write_out(begin, bytes);
}

void FileWriter::sync() {
  write_out(small_.data(), small_.size());
  small_.clear();
  if (::fsync(file_.get()) != 0) throw_file_error("sync", path_);
}

void FileWriter::write_out(const std::byte* data, std::size_t bytes) {
  const HeldSignal too_large(SIGXFSZ);
  while (bytes > 0) {
    const ssize_t written = ::write(file_.get(), data, bytes);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) throw_file_error("write", path_);
    data += written;
    bytes -= static_cast<std::size_t>(written);
    written_ += written;
  }
  if (written_ - flushing_ < kBatchBytes) return;
  // Only a hint: sync() reports errors.
  ::sync_file_range(file_.get(), flushing_, written_ - flushing_, SYNC_FILE_RANGE_WRITE);
  flushing_ = written_;
}

void make_folder(const std::filesystem::path& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) return;
  const std::filesystem::path parent = parent_of(path);
  if (parent != path) make_folder(parent);
  if (::mkdir(path.c_str(), kAll) != 0) {
    const int cause = errno;
    // Another program may have created it meanwhile.
    if (!std::filesystem::is_directory(path, error)) throw_file_error("create folder", path, cause);
  }
  sync_folder(parent);
}

void sync_folder(const std::filesystem::path& path) {
  const comm::FileDescriptor folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder.is_open()) throw_file_error("open folder", path);
  // Some network file systems do not support fsync of folders, and do not need it.
  if (::fsync(folder.get()) != 0 && errno != EINVAL) throw_file_error("sync", path);
}

std::vector<std::string> names_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  const std::filesystem::directory_iterator end;
  std::filesystem::directory_iterator entry(folder, error);
  for (; !error && entry != end; entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  if (error) throw_file_error("list folder", folder, error.value());
  return names;
}

void remove_tree(const std::filesystem::path& path) {
  std::error_code error;
  std::filesystem::remove_all(path, error);
  if (error) throw_file_error("remove", path, error.value());
}

}  // namespace kolo::checkpoints
