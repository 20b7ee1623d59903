#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "kolo/runtime.hpp"
#include "torch/checkpoint/checkpoint.hpp"
#include "torch/checkpoint/tensor_slice.hpp"
#include "torch/checkpoint/write_checkpoint.hpp"

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
  const train::Checkpoint checkpoint(path, train::Readers(OperationOptions{}));
  CheckpointImage image{{}, checkpoint.details()};
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    const std::int64_t count = train::elements_of(tensor.shape).value();
    const auto bytes = static_cast<std::size_t>(train::bytes_of(tensor.dtype, count));
    CheckpointImage::Tensor& read = image.tensors[name];
    read = {tensor.dtype, tensor.shape, std::vector<std::byte>(bytes)};
    checkpoint.read(name, tensor.dtype, 0, read.bytes);
  }
  return image;
}

/// Writes a checkpoint with this content, valid or not, and the right checksums. The first rank
/// holds all elements. Collective over the world.
inline void write_image(const std::filesystem::path& folder, const CheckpointImage& image) {
  std::vector<train::TensorSlice> slices;
  if (Runtime::current().rank() == 0) {
    for (const auto& [name, tensor] : image.tensors) {
      const std::int64_t count = train::elements_of(tensor.shape).value();
      slices.push_back({name, tensor.dtype, tensor.shape, 0, count, tensor.bytes.data()});
    }
  }
  train::write_checkpoint(folder, slices, image.details, /*keep_last=*/0, {});
}

}  // namespace kolo::test
