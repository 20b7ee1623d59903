#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>

#include "torch/checkpoint/file_reader.hpp"
#include "torch/checkpoint/safetensors_header.hpp"

namespace kolo::train {

/// Reads a safetensors file that any program wrote. Throws InvalidArgument, naming file and tensor,
/// if the file is missing or violates the format; BackendError if the system cannot read it.
class SafetensorsReader {
 public:
  explicit SafetensorsReader(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return file_.path(); }
  const std::map<std::string, SafetensorsHeader::Place>& tensors() const { return header_.tensors; }

  /// Fills `target` with a tensor's elements, which must be of `dtype`, from `begin` on.
  void read(const std::string& name, DType dtype, std::int64_t begin,
            std::span<std::byte> target) const;

 private:
  FileReader file_;
  SafetensorsHeader header_;
  std::int64_t data_begin_ = 0;
};

}  // namespace kolo::train
