#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <vector>

#include "torch/checkpoint/checkpoint_index.hpp"
#include "torch/checkpoint/file_reader.hpp"

namespace kolo::train {

/// Reads a shard file's data in blocks and verifies their checksums. Throws InvalidArgument, naming
/// the file, if it is missing, has another size or is damaged; BackendError if the system cannot
/// read it.
class BlockReader {
 public:
  /// The file of that name in `folder`. `about` must outlive this.
  BlockReader(const std::filesystem::path& folder, const CheckpointIndex::File& about);

  void verify_header() const;
  /// Copies bytes of the data, from `offset` on, to `target`; null: only verifies them.
  void read(std::int64_t offset, std::int64_t bytes, void* target);

 private:
  void read_block(std::int64_t block, void* target) const;

  const CheckpointIndex::File& about_;
  FileReader file_;
  std::int64_t held_ = -1;  // the block in `block_`: many small tensors lie in one
  std::vector<std::byte> block_;
};

}  // namespace kolo::train
