#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include "torch/checkpoint/file_writer.hpp"
#include "torch/checkpoint/safetensors_header.hpp"

namespace kolo::tensors {

/// Writes one safetensors file of whole tensors as a stream of their elements, with little memory
/// beside what is appended. Until `close` the file has another name, ".incomplete-", a number, and
/// its own; without `close` it is removed. What had the name before stays until then. Of two
/// programs that write one file at a time the later one removes what the other has, whose `close`
/// then fails. Throws BackendError naming file and cause.
class SafetensorsWriter {
 public:
  /// The folder is made if absent. Throws InvalidArgument as encode_safetensors_header does.
  SafetensorsWriter(const std::filesystem::path& path,
                    const std::vector<SafetensorsTensor>& tensors,
                    const SafetensorsMetadata& metadata);
  SafetensorsWriter(const SafetensorsWriter&) = delete;  // one file, one name
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;
  ~SafetensorsWriter();

  /// The next elements: those of the tensors in their order, in pieces of any size. Throws
  /// InvalidArgument where they are more than the tensors have.
  void append(const void* data, std::size_t bytes);
  /// Returns when the file is on the disk under its name. Throws InvalidArgument where elements are
  /// missing.
  void close();

 private:
  std::filesystem::path path_;
  std::filesystem::path incomplete_;
  std::int64_t missing_bytes_ = 0;
  std::unique_ptr<FileWriter> file_;  // null once closed
};

}  // namespace kolo::tensors
