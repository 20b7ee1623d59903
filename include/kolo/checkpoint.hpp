#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

namespace kolo {

class GradScaler;

/// What DistributedOptimizer::save writes besides the training state; the same on all ranks.
struct SaveOptions {
  int keep_last = 1;                   ///< older checkpoints are removed afterwards; 0: none
  const GradScaler* scaler = nullptr;  ///< whose state belongs to it
  std::map<std::string, std::string> extras{};  ///< of the program, in UTF-8: an epoch, its options
};

/// What DistributedOptimizer::load reads; the same on all ranks.
struct LoadOptions {
  /// Every parameter and buffer of the model is in the checkpoint, and nothing else is. Otherwise
  /// those are loaded that are in both, under one name and of one shape and type: for fine-tuning.
  bool strict = true;
  bool optimizer_state = true;   ///< and options; false: parameters and buffers only
  bool random_state = true;      ///< of the CPU's and the device's generators, of ranks that
                                 ///< were there then
  GradScaler* scaler = nullptr;  ///< gets its state; null with strict: there must be none
};

/// What load has found besides.
struct Loaded {
  std::filesystem::path path;  ///< the checkpoint, or the file
  std::int64_t steps = 0;      ///< that were taken when it was written
  std::map<std::string, std::string> extras{};
};

}  // namespace kolo
