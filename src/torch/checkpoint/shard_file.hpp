#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "torch/checkpoint/checkpoint_index.hpp"
#include "torch/checkpoint/tensor_slice.hpp"

namespace kolo::train {

/// The file that one rank writes: a safetensors file of its slices, each a tensor of one dimension
/// named like the whole tensor or, if it is a part of it, "name[begin:end]". Empty slices are left
/// out.
class ShardFile {
 public:
  /// Throws InvalidArgument, naming the tensor, if a slice is not within its tensor or two slices
  /// have the same name.
  explicit ShardFile(const std::vector<TensorSlice>& slices);

  /// The entries of an index of this file alone.
  std::map<std::string, CheckpointIndex::Tensor> tensors() const;

  /// Writes a new file and blocks until it is on the disk. Throws BackendError naming file and
  /// cause.
  CheckpointIndex::File write(const std::filesystem::path& path) const;

 private:
  std::vector<TensorSlice> all_;
  std::vector<TensorSlice> written_;  // in the file's order
  std::string header_;
};

}  // namespace kolo::train
