#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <vector>

#include "comm/file_descriptor.hpp"

namespace kolo::train {

/// Writes a new file from start to end. Large pieces are written directly from their memory, small
/// ones are buffered. Flushing starts with the first pieces, so that the disk stays busy. Throws
/// BackendError naming file and cause.
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

}  // namespace kolo::train
