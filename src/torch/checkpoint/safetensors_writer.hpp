#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include "torch/checkpoint/file_writer.hpp"
#include "torch/checkpoint/safetensors_header.hpp"

namespace kolo::train {

/// Streams whole tensors to one safetensors file, in little memory. Until `close` the file is named
/// ".incomplete-<number>-<name>", and an older file of its name stays; without `close` it is
/// removed. If two programs write the same file concurrently, the later one removes the unfinished
/// file of the earlier one, whose `close` then fails. Throws BackendError naming file and cause.
class SafetensorsWriter {
 public:
  /// Creates the folder if it is missing. Throws InvalidArgument like encode_safetensors_header.
  SafetensorsWriter(const std::filesystem::path& path,
                    const std::vector<SafetensorsTensor>& tensors);
  SafetensorsWriter(const SafetensorsWriter&) = delete;  // one file, one name
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;
  ~SafetensorsWriter();

  /// Appends elements: those of all tensors in order, in pieces of any size. Throws InvalidArgument
  /// for more than the tensors have.
  void append(const void* data, std::size_t bytes);
  /// Blocks until the file is on the disk under its name. Throws InvalidArgument if elements are
  /// missing.
  void close();

 private:
  std::filesystem::path path_;
  std::filesystem::path incomplete_;
  std::int64_t missing_bytes_ = 0;
  std::unique_ptr<FileWriter> file_;  // null once closed
};

}  // namespace kolo::train
