#pragma once

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "comm/file_descriptor.hpp"

/// Files and folders by system calls: what has been written survives a crash, and every error is a
/// BackendError that names path and cause.
namespace kolo::checkpoints {

/// Throws BackendError for the system call that has just failed: "cannot write '/x': No space
/// left".
[[noreturn]] void throw_file_error(const std::string& action, const std::filesystem::path& path,
                                   int error = errno);

/// Reads from any offset of a file. Throws InvalidArgument, naming it, if the file is missing or
/// ends too early.
class FileReader {
 public:
  explicit FileReader(std::filesystem::path path);

  const std::filesystem::path& path() const { return path_; }
  std::int64_t size() const { return size_; }  ///< in bytes, when it was opened
  void read(std::int64_t offset, std::int64_t bytes, void* target) const;
  /// The whole file. Throws InvalidArgument, without its name, if it has more than `most` bytes.
  std::string read_text(std::int64_t most) const;

 private:
  std::filesystem::path path_;
  comm::FileDescriptor file_;
  std::int64_t size_ = 0;
};

/// Writes a new file from start to end. Large pieces are written directly from their memory, small
/// ones are buffered. Flushing starts with the first pieces, so that the disk stays busy.
class FileWriter {
 public:
  /// Creates the file, which must not exist, and reserves `bytes`, its final size.
  FileWriter(std::filesystem::path path, std::int64_t bytes);

  void append(const void* data, std::size_t bytes);
  /// Blocks until everything is on the disk.
  void sync();

 private:
  void reserve(std::int64_t bytes);
  void write_out(const std::byte* data, std::size_t bytes);

  std::filesystem::path path_;
  comm::FileDescriptor file_;
  std::vector<std::byte> small_;  // not written yet
  std::int64_t written_ = 0;      // bytes
  std::int64_t flushing_ = 0;     // how many of them the system was told to flush
};

/// Creates the folder and those above it if they are missing.
void make_folder(const std::filesystem::path& path);
/// Blocks until the folder's list of names is on the disk.
void sync_folder(const std::filesystem::path& path);
std::vector<std::string> names_in(const std::filesystem::path& folder);
/// Removes a file, or a folder with its contents.
void remove_tree(const std::filesystem::path& path);

}  // namespace kolo::checkpoints
