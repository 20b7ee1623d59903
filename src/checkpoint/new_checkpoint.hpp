#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "checkpoint/checkpoint.hpp"
#include "checkpoint/ranks.hpp"
#include "kolo/dtype.hpp"

namespace kolo::checkpoints {

/// A range of elements of a tensor, which one rank writes.
struct TensorSlice {
  std::string name;  ///< of the whole tensor
  DType dtype = DType::Float32;
  std::vector<std::int64_t> shape;  ///< of the whole tensor
  std::int64_t begin = 0;           ///< first element in the whole tensor, in row-major order
  std::int64_t count = 0;
  const void* data = nullptr;
  /// Instead of `data`, for elements that are not in CPU memory: copies their bytes, from `offset`
  /// on, to `place`.
  std::function<void(std::size_t offset, std::span<std::byte> place)> copy_to{};
};

/// Throws if this rank could not load the checkpoint `path`, which has this index.
using RequireLoadable =
    std::function<void(const CheckpointIndex& index, const std::filesystem::path& path)>;

/// A new checkpoint in `folder`, which it creates if missing and which all ranks must see under
/// this name: folder/checkpoint-00000007, with index.json and a file of each rank. A crash at
/// any moment leaves the earlier checkpoints, and this one complete or not at all. If another
/// program is saving into the folder, waits at most half its timeout, then throws BackendError,
/// which names that program if possible.
///
/// The slices `own` of all ranks together hold each element of every tensor once; at least one rank
/// names a tensor without elements. They are written straight from their memory. `details` of all
/// ranks, which must be objects, are merged recursively; if several ranks have a key, the last
/// rank's value is kept.
///
/// Every rank calls `require_loadable`, if there is one, before anything is written: what cannot be
/// loaded is not.
///
/// Both functions are collective and blocking, and throw on all ranks, naming rank, tensor or file,
/// and cause: InvalidArgument for slices that overlap, leave gaps or do not fit their tensor and
/// for details that JSON cannot hold, MismatchError if ranks disagree about folder, keep_last,
/// dtypes or shapes, BackendError if files cannot be created or written; the errors of all
/// collectives and of `require_loadable`.
class NewCheckpoint {
 public:
  NewCheckpoint(std::filesystem::path folder, const std::vector<TensorSlice>& own,
                const nlohmann::json& details, int keep_last, const Ranks& ranks,
                const RequireLoadable& require_loadable = {});
  ~NewCheckpoint();
  NewCheckpoint(NewCheckpoint&&) noexcept;
  NewCheckpoint& operator=(NewCheckpoint&&) noexcept;

  /// Writes and publishes it, then removes checkpoints older than the newest `keep_last`; 0 keeps
  /// all. When it returns its name, everything is on the disk. Any thread, once.
  std::filesystem::path write();

 private:
  class RankFile;
  class Folder;
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace kolo::checkpoints
