#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "kolo/collectives.hpp"
#include "torch/checkpoint/block_reader.hpp"
#include "torch/checkpoint/checkpoint_index.hpp"
#include "torch/checkpoint/folder_lock.hpp"
#include "torch/checkpoint/on_all_ranks.hpp"

namespace kolo::train {

/// Whether a folder is a checkpoint, or has one. Throws BackendError if it cannot be listed.
bool has_checkpoint(const std::filesystem::path& folder);

/// Reads a checkpoint written by any number of ranks. Not thread-safe. While it lives with the
/// first reader, other programs that save into its folder do not remove the checkpoint.
class Checkpoint {
 public:
  using Tensor = CheckpointIndex::Tensor;

  /// Opens `path`, or the newest checkpoint in it, which the first reader chooses for all.
  /// Collective if the readers are several ranks, and blocking. Each checks the sizes and headers
  /// of some files; elements are verified when they are read. If a program is saving into the
  /// folder, waits for it, but at most half the timeout. Throws on all ranks, naming rank, file and
  /// tensor:
  /// InvalidArgument if there is no checkpoint, or its files are missing, truncated, damaged or
  /// replaced; BackendError if the system cannot read them; the errors of all collectives.
  Checkpoint(const std::filesystem::path& path, const Readers& readers);

  const CheckpointIndex& index() const { return index_; }
  const std::map<std::string, Tensor>& tensors() const { return index_.tensors; }
  const nlohmann::json& details() const { return index_.details; }
  /// The path of the checkpoint itself.
  const std::filesystem::path& path() const { return path_; }

  /// Reads the blocks that hold these elements and verifies their checksums. Not collective. Throws
  /// InvalidArgument, naming tensor, file and the difference, such as another dtype; BackendError
  /// if the system cannot read the file.
  void verify(const std::string& name, DType dtype, std::int64_t begin, std::int64_t count) const;

  /// Fills `target` with the elements from `begin` on. The caller's memory determines their number
  /// and dtype, never the file. Verifies checksums again, as files may have changed, and throws
  /// like `verify`; `target` may have been written to then.
  void read(const std::string& name, DType dtype, std::int64_t begin,
            std::span<std::byte> target) const;

 private:
  void visit(const std::string& name, DType dtype, std::int64_t begin, std::int64_t count,
             std::byte* target) const;
  BlockReader& open(std::size_t file) const;

  std::optional<FolderLock> lock_;
  std::filesystem::path path_;
  CheckpointIndex index_;
  // The last file that was read: a checkpoint may have more files than a process may open.
  mutable std::size_t open_file_ = 0;
  mutable std::unique_ptr<BlockReader> reader_;
};

}  // namespace kolo::train
