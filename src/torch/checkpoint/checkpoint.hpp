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

namespace kolo::tensors {

/// A checkpoint for reading, written by any number of ranks. One thread at a time uses it. As long
/// as it lives on the set's first rank, no program that saves into its folder removes it.
class Checkpoint {
 public:
  using Tensor = CheckpointIndex::Tensor;

  /// Opens `path`, or the newest checkpoint in it, which the set's first rank chooses for all.
  /// Collective over the set of `options` and blocking. The ranks share out the files, to see that
  /// they are there and are those that were written; elements are compared when they are read.
  /// Where a program saves into the folder, it waits for half its timeout at most.
  /// Throws on all ranks, naming rank, file and tensor: InvalidArgument where there is no
  /// checkpoint, or its files are missing, truncated, damaged or others, BackendError where the
  /// system cannot read them; as all collectives do.
  Checkpoint(const std::filesystem::path& path, const OperationOptions& options);

  const std::map<std::string, Tensor>& tensors() const { return index_.tensors; }
  const nlohmann::json& details() const { return index_.details; }
  /// Of the checkpoint itself.
  const std::filesystem::path& path() const { return path_; }

  /// Throws InvalidArgument, naming both, where a tensor is missing or of another type or shape
  /// than the program has for it.
  void require(const std::string& name, DType dtype, const std::vector<std::int64_t>& shape) const;

  /// Reads the blocks that hold these elements and compares their checksums. Not collective. Throws
  /// InvalidArgument naming tensor, file, and what is wrong, such as a type that is not `dtype`;
  /// BackendError where the system cannot read the file.
  void verify(const std::string& name, DType dtype, std::int64_t begin, std::int64_t count) const;

  /// Fills `target` with the elements from `begin` on. What the caller has memory for decides how
  /// many are read and of which type, never the file. Compares checksums too, and throws as
  /// `verify` does: a file may change after it was verified, and comparing costs a small part of
  /// reading. Where it throws, `target` may have been written to.
  void read(const std::string& name, DType dtype, std::int64_t begin,
            std::span<std::byte> target) const;

 private:
  void visit(const std::string& name, DType dtype, std::int64_t begin, std::int64_t count,
             std::byte* target) const;
  BlockReader& open(std::size_t file) const;

  std::optional<FolderLock> lock_;
  std::filesystem::path path_;
  CheckpointIndex index_;
  // The last file that was read: one at a time, as there may be more than a process may open.
  mutable std::size_t open_file_ = 0;
  mutable std::unique_ptr<BlockReader> reader_;
};

}  // namespace kolo::tensors
