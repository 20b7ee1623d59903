#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <vector>

#include "comm/file_descriptor.hpp"

namespace kolo::tensors {

/// Writes a new file from its first byte to its last. Large pieces go to the system straight from
/// their memory; small ones are put together first. The disk is kept busy from the first pieces on.
/// Throws BackendError naming file and cause.
class FileWriter {
 public:
  /// Makes the file, which must not be there yet and gets room for `bytes`, all that it will have.
  FileWriter(std::filesystem::path path, std::int64_t bytes);

  void append(const void* data, std::size_t bytes);
  /// Returns when all that was appended is on the disk.
  void sync();

 private:
  void reserve(std::int64_t bytes);
  void write_out(const std::byte* data, std::size_t bytes);

  std::filesystem::path path_;
  comm::FileDescriptor file_;
  std::vector<std::byte> small_;   // not written yet
  std::int64_t written_ = 0;       // bytes
  std::int64_t on_their_way_ = 0;  // of these, that the system has been told to bring to the disk
};

}  // namespace kolo::tensors
