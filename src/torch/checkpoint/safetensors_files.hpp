#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "torch/checkpoint/safetensors_reader.hpp"

namespace kolo::train {

// What Hugging Face calls the files of a model in its folder.
inline constexpr std::string_view kModelName = "model.safetensors";
inline constexpr std::string_view kModelIndexName = "model.safetensors.index.json";

/// The safetensors files of a model: one, or those that an index lists. They stay open. Throws
/// InvalidArgument, naming files and tensor, and BackendError as SafetensorsReader.
class SafetensorsFiles {
 public:
  static SafetensorsFiles of_file(const std::filesystem::path& path);
  /// `path` is a model.safetensors.index.json: its "weight_map" says which file beside it has a
  /// tensor. Every file must be there and have these tensors, and no tensor may be in two. Tensors
  /// that it does not list count too, as for Hugging Face. Links are followed, since a cache of
  /// Hugging Face consists of them.
  static SafetensorsFiles of_index(const std::filesystem::path& path);

  const std::map<std::string, SafetensorsHeader::Place>& tensors() const { return tensors_; }

  /// Fills `target` with a tensor's elements, which must be of `dtype`, from `begin` on.
  void read(const std::string& name, DType dtype, std::int64_t begin,
            std::span<std::byte> target) const {
    files_[file_of_.at(name)].read(name, dtype, begin, target);
  }

 private:
  void add(const std::filesystem::path& path);

  std::vector<SafetensorsReader> files_;
  std::map<std::string, SafetensorsHeader::Place> tensors_;
  std::map<std::string, std::size_t> file_of_;
};

}  // namespace kolo::train
