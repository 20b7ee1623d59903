#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "checkpoint/checkpoint.hpp"
#include "checkpoint/new_checkpoint.hpp"
#include "checkpoint/safetensors.hpp"
#include "kolo/runtime.hpp"

namespace kolo::test {

/// A checkpoint's content in memory, as read by `read_image` or made up by a test.
struct CheckpointImage {
  struct Tensor {
    DType dtype = DType::Float32;
    std::vector<std::int64_t> shape;
    std::vector<std::byte> bytes;

    bool operator==(const Tensor&) const = default;
  };
  std::map<std::string, Tensor> tensors;
  nlohmann::json details;

  bool operator==(const CheckpointImage&) const = default;
};

/// Reads a whole checkpoint, or the newest one in a folder. Collective over the world.
inline CheckpointImage read_image(const std::filesystem::path& path) {
  const checkpoints::Checkpoint checkpoint(path, checkpoints::Ranks());
  CheckpointImage image{{}, checkpoint.details()};
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    const std::int64_t count = checkpoints::elements_of(tensor.shape).value();
    const auto bytes = static_cast<std::size_t>(checkpoints::bytes_of(tensor.dtype, count));
    CheckpointImage::Tensor& read = image.tensors[name];
    read = {tensor.dtype, tensor.shape, std::vector<std::byte>(bytes)};
    checkpoint.read(name, tensor.dtype, 0, read.bytes);
  }
  return image;
}

/// Writes a checkpoint with this content, valid or not, and the right checksums. The first rank
/// holds all elements. Collective over the world.
inline void write_image(const std::filesystem::path& folder, const CheckpointImage& image) {
  std::vector<checkpoints::TensorSlice> slices;
  if (Runtime::current().rank() == 0) {
    for (const auto& [name, tensor] : image.tensors) {
      const std::int64_t count = checkpoints::elements_of(tensor.shape).value();
      slices.push_back({name, tensor.dtype, tensor.shape, 0, count, tensor.bytes.data()});
    }
  }
  checkpoints::NewCheckpoint(folder, slices, image.details, /*keep_last=*/0, checkpoints::Ranks())
      .write();
}

}  // namespace kolo::test
