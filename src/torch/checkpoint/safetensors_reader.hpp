#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>

#include "torch/checkpoint/file_reader.hpp"
#include "torch/checkpoint/safetensors_header.hpp"

namespace kolo::tensors {

/// Reads a safetensors file, of whatever program wrote it. Throws InvalidArgument naming file and
/// tensor where the file is missing or not as the format wants it, BackendError where the system
/// cannot read it.
class SafetensorsReader {
 public:
  explicit SafetensorsReader(const std::filesystem::path& path);

  const std::map<std::string, SafetensorsHeader::Place>& tensors() const { return header_.tensors; }
  const SafetensorsMetadata& metadata() const { return header_.metadata; }

  /// Fills `target` with a tensor's elements from `begin` on, which must be of type `dtype`.
  void read(const std::string& name, DType dtype, std::int64_t begin,
            std::span<std::byte> target) const;

 private:
  FileReader file_;
  SafetensorsHeader header_;
  std::int64_t data_begin_ = 0;
};

}  // namespace kolo::tensors
