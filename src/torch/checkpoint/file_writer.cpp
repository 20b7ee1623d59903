#include "torch/checkpoint/file_writer.hpp"

#include <csignal>
#include <fcntl.h>
#include <string>
#include <unistd.h>
#include <utility>

#include "base/held_signal.hpp"
#include "torch/checkpoint/file_error.hpp"

namespace kolo::train {
namespace {

constexpr std::size_t kSmallBytes = std::size_t{128} << 10;
constexpr std::int64_t kBatchBytes = std::int64_t{8} << 20;
constexpr mode_t kReadWrite = 0666;  // minus the umask

}  // namespace

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

}  // namespace kolo::train
