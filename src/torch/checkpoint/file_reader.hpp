#pragma once

#include <cstdint>
#include <filesystem>

#include "comm/file_descriptor.hpp"

namespace kolo::tensors {

/// Reads from any place of a file. Throws InvalidArgument where the file is not there or ends too
/// early, BackendError where the system cannot read it; both name the file.
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

}  // namespace kolo::tensors
