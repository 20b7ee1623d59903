#pragma once

#include <vector>

#include "torch/checkpoint/checkpoint_index.hpp"

namespace kolo::tensors {

/// Merges the indexes of the ranks' files into that of the checkpoint. Details are merged
/// recursively; of values under one key the last one stays. Throws MismatchError, naming tensor and
/// files, if ranks disagree about a tensor's dtype or shape.
CheckpointIndex merge_indexes(std::vector<CheckpointIndex> parts);

/// Throws InvalidArgument, naming tensor, elements and files, unless every tensor's slices hold
/// each of its elements once, in order.
void require_whole(const CheckpointIndex& index);

}  // namespace kolo::tensors
