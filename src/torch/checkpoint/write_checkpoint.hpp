#pragma once

#include <filesystem>
#include <vector>

#include <nlohmann/json.hpp>

#include "kolo/collectives.hpp"
#include "torch/checkpoint/tensor_slice.hpp"

namespace kolo::tensors {

/// Writes a new checkpoint into `folder`, which is made if absent and which all ranks must see
/// under this name: folder/checkpoint-00000007, with a shard file of each rank and index.json.
/// Collective over the set of `options` and blocking; when it returns, all is on the disk. A crash
/// at any moment leaves the checkpoints that were there, and this one whole or not at all. Then
/// removes those older than the newest `keep_last`; 0 keeps all. Where another program saves into
/// the folder, it waits for half its timeout at most, then throws BackendError with what is known
/// of that one.
///
/// `own` slices of all ranks together hold the elements of every tensor once; a tensor without
/// elements is named by at least one rank. They are written straight from their memory. `details`
/// of all ranks, objects, are merged, inner objects too; of values under one key the last rank's
/// stays.
///
/// Throws on all ranks, naming rank, tensor or file, and cause: InvalidArgument for slices that
/// overlap, leave gaps or do not fit their tensor and for details that JSON cannot hold,
/// MismatchError where ranks differ about folder, keep_last, dtypes or shapes, BackendError where
/// files cannot be made or written; as all collectives do.
void write_checkpoint(const std::filesystem::path& folder, const std::vector<TensorSlice>& own,
                      const nlohmann::json& details, int keep_last,
                      const OperationOptions& options);

}  // namespace kolo::tensors
