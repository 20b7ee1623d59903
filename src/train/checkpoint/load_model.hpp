#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "checkpoint/checkpoint.hpp"
#include "checkpoint/ranks.hpp"
#include "kolo/torch/checkpoint.hpp"
#include "train/checkpoint/saved_state.hpp"
#include "train/checkpoint/training_view.hpp"
#include "train/tensors/tensor_memory.hpp"

namespace kolo::train {

/// The parameters and buffers of a model, from a checkpoint or from files that hold nothing else:
/// which tensor there each of them takes, and its values. See also load_parameters().

/// A copy from a checkpoint to a tensor.
struct Read {
  std::string key;
  std::int64_t begin;
  at::Tensor target;
  DType dtype = view_of(target, key).dtype;  // in the checkpoint
};

/// Verifies the checksums of what read_into() reads. Both throw the errors of Checkpoint.
void verify(const checkpoints::Checkpoint& checkpoint, const Read& read);
void read_into(const checkpoints::Checkpoint& checkpoint, const Read& read);

/// Which of the model's parameters and buffers a checkpoint has. Throws InvalidArgument if it has
/// none or, with `strict`, naming the first difference, not exactly these.
Loaded match_model(const ModelView& model, const SavedTraining& saved, bool strict);
/// How this rank reads them: its shards of fully sharded parameters, and all others.
std::vector<Read> reads_of(const ModelView& model, const SavedTraining& saved, bool strict);

/// Loads parameters and buffers by name from a file that holds nothing else, or a folder of such
/// files: see DistributedOptimizer::load. Collective if the ranks are several; throws on all.
Loaded load_model_file(const ModelView& model, const std::filesystem::path& path, bool strict,
                       const checkpoints::Ranks& ranks);

/// Logs what a load has converted and left out.
void log_partial(const Loaded& loaded);

}  // namespace kolo::train
