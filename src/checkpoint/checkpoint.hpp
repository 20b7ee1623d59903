#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "checkpoint/folder_lock.hpp"
#include "checkpoint/ranks.hpp"
#include "kolo/dtype.hpp"

namespace kolo::checkpoints {

inline constexpr std::string_view kIndexName = "index.json";
/// Far more than any checkpoint needs, and little enough to read into memory.
inline constexpr std::int64_t kMaxIndexBytes = std::int64_t{1} << 30;

/// The contents of a checkpoint's index.json: where the elements of all tensors are.
struct CheckpointIndex {
  struct File {
    std::string name;
    std::int64_t bytes = 0;
    std::int64_t header_bytes = 0;  ///< before the data
    std::uint64_t header_checksum = 0;
    std::vector<std::uint64_t> block_checksums;  ///< of the data, see kBlockBytes

    std::int64_t data_bytes() const { return bytes - header_bytes; }
  };
  struct Slice {
    std::size_t file = 0;  ///< index into `files`
    std::int64_t begin = 0;
    std::int64_t count = 0;
    std::int64_t offset = 0;  ///< in bytes, from the beginning of the file's data
  };
  struct Tensor {
    DType dtype = DType::Float32;
    std::vector<std::int64_t> shape;
    std::vector<Slice> slices;  ///< in the order of elements; none is empty
  };
  std::vector<File> files;
  std::map<std::string, Tensor> tensors;
  nlohmann::json details = nlohmann::json::object();
};

/// The index as text with a checksum of itself, and the inverse. `parse_index` throws
/// InvalidArgument, naming the tensor, for a wrong checksum, other formats and versions, fields
/// that are missing or of another type, and slices outside their file.
std::string encode_index(const CheckpointIndex& index);
CheckpointIndex parse_index(const std::string& text);

/// Merges the indexes of the ranks' files into that of the checkpoint. Details are merged
/// recursively; if several ranks have a key, the last rank's value is kept. Throws MismatchError,
/// naming tensor and files, if ranks disagree about a tensor's dtype or shape.
CheckpointIndex merge_indexes(std::vector<CheckpointIndex> parts);

/// Throws InvalidArgument, naming tensor, elements and files, unless every tensor's slices contain
/// each of its elements once, in order.
void require_whole(const CheckpointIndex& index);

/// Whether a folder is a checkpoint, or has one. Throws BackendError if it cannot be listed.
bool has_checkpoint(const std::filesystem::path& folder);

/// Reads a checkpoint written by any number of ranks. Not thread-safe. While it lives on the
/// first rank, other programs that save into its folder do not remove the checkpoint.
class Checkpoint {
 public:
  using Tensor = CheckpointIndex::Tensor;

  /// Opens `path`, or the newest checkpoint in it, which the first rank chooses for all.
  /// Collective and blocking. Each checks the sizes and headers
  /// of some files; elements are verified when they are read. If a program is saving into the
  /// folder, waits for it, but at most half the timeout. Throws on all ranks, naming rank, file and
  /// tensor:
  /// InvalidArgument if there is no checkpoint, or its files are missing, truncated, damaged or
  /// replaced; BackendError if the system cannot read them; the errors of all collectives.
  Checkpoint(const std::filesystem::path& path, const Ranks& ranks);
  ~Checkpoint();

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
  class BlockReader;

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

}  // namespace kolo::checkpoints
