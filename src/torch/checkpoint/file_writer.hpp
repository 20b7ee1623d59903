#pragma once

#include <cstddef>
#include <filesystem>
#include <vector>

#include "comm/file_descriptor.hpp"

namespace kolo::tensors {

/// Writes a new file from its first byte to its last. Large pieces go to the system straight from
/// their memory; small ones are put together first. Throws BackendError naming file and cause.
class FileWriter {
 public:
  /// Makes the file, which must not be there yet.
  explicit FileWriter(std::filesystem::path path);

  void append(const void* data, std::size_t bytes);
  /// Returns when all that was appended is on the disk.
  void sync();

 private:
  void write_out(const std::byte* data, std::size_t bytes);

  std::filesystem::path path_;
  comm::FileDescriptor file_;
  std::vector<std::byte> small_;  // not written yet
};

}  // namespace kolo::tensors
