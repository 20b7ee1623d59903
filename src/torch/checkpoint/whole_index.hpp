#pragma once

#include <vector>

#include "torch/checkpoint/checkpoint_index.hpp"

namespace kolo::tensors {

/// The index of a whole checkpoint out of those of the ranks' own files. Details are merged, inner
/// objects too; of values under one key the last stays. Throws MismatchError, naming tensor and
/// files, where ranks differ about a tensor's dtype or shape.
CheckpointIndex merge_indexes(std::vector<CheckpointIndex> parts);

/// Throws InvalidArgument, naming tensor, elements and files, where a tensor's elements are not in
/// its slices once each, in their order.
void require_whole(const CheckpointIndex& index);

}  // namespace kolo::tensors
