#pragma once

#include <cstdint>
#include <filesystem>

#include "comm/file_descriptor.hpp"

namespace kolo::train {

/// Reads from any offset of a file. Throws InvalidArgument if the file is missing or ends too
/// early, BackendError if the system cannot read it; both name the file.
class FileReader {
 public:
  explicit FileReader(std::filesystem::path path);

  const std::filesystem::path& path() const { return path_; }
  std::int64_t size() const { return size_; }  ///< in bytes, when it was opened
  void read(std::int64_t offset, std::int64_t bytes, void* target) const;

 private:
  std::filesystem::path path_;
  comm::FileDescriptor file_;
  std::int64_t size_ = 0;
};

}  // namespace kolo::train
