#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

#pragma GCC visibility push(default)
namespace kolo {

class GradScaler;

/// What DistributedOptimizer::save writes besides the training state; the same on all ranks.
struct SaveOptions {
  int keep_last = 1;                            ///< newest checkpoints to keep; 0: all
  const GradScaler* scaler = nullptr;           ///< its state is saved too
  std::map<std::string, std::string> extras{};  ///< anything else, in UTF-8: an epoch, say
};

/// What DistributedOptimizer::load reads; the same on all ranks.
struct LoadOptions {
  /// The checkpoint must hold exactly the parameters and buffers of the model. Otherwise it loads
  /// those that are in both with the same name, shape and dtype: for fine-tuning.
  bool strict = true;
  bool optimizer_state = true;   ///< and options; false: parameters and buffers only
  bool random_state = true;      ///< CPU and device generators of ranks that the checkpoint has
  GradScaler* scaler = nullptr;  ///< gets its state; null with strict: the checkpoint has none
};

/// What DistributedOptimizer::load found.
struct Loaded {
  std::filesystem::path path;                   ///< the checkpoint, or the file
  std::int64_t steps = 0;                       ///< taken when it was saved
  std::map<std::string, std::string> extras{};  ///< those of SaveOptions
};

}  // namespace kolo
#pragma GCC visibility pop
