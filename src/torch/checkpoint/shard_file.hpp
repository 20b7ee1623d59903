#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "torch/checkpoint/checkpoint_index.hpp"
#include "torch/checkpoint/tensor_slice.hpp"

namespace kolo::tensors {

/// What one rank writes: a safetensors file with its slices, each a tensor of one dimension, named
/// like the whole tensor or, where it is a part of it, "name[begin:end]". Empty slices are left
/// out.
class ShardFile {
 public:
  /// Throws InvalidArgument naming the tensor where a slice is not within its tensor, or is named
  /// like another.
  explicit ShardFile(const std::vector<TensorSlice>& slices);

  /// As an index that lists this file alone has them.
  std::map<std::string, CheckpointIndex::Tensor> tensors() const;

  /// Writes a new file; returns when it is on the disk. Throws BackendError naming it and the
  /// cause.
  CheckpointIndex::File write(const std::filesystem::path& path) const;

 private:
  std::vector<TensorSlice> all_;
  std::vector<TensorSlice> written_;  // in the file's order
  std::string header_;
};

}  // namespace kolo::tensors
