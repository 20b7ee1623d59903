#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#pragma GCC visibility push(default)
namespace kolo {

class GradScaler;

/// What DistributedOptimizer::save writes besides the training state; the same on all ranks.
struct SaveOptions {
  int keep_last = 1;                            ///< keep this many of the newest; 0: all
  const GradScaler* scaler = nullptr;           ///< saves its state too
  std::map<std::string, std::string> extras{};  ///< anything else in UTF-8, such as the epoch
};

/// What DistributedOptimizer::load reads; the same on all ranks.
struct LoadOptions {
  /// Requires the checkpoint or file to hold exactly the parameters and buffers of the model.
  /// Otherwise load() takes those that have the same name and shape in both, at least one; between
  /// floating-point types, and between complex ones, it converts: for fine-tuning.
  bool strict = true;
  bool optimizer_state = true;   ///< and options; false: only parameters and buffers
  bool random_state = true;      ///< CPU and device generators of the ranks in the checkpoint
  GradScaler* scaler = nullptr;  ///< restored; if null and strict, the checkpoint must have none
};

/// What DistributedOptimizer::load found.
struct Loaded {
  std::filesystem::path path;                   ///< the checkpoint, or the file
  std::int64_t steps = 0;                       ///< steps taken when it was saved
  std::map<std::string, std::string> extras{};  ///< as given to save()
  std::vector<std::string> loaded{};     ///< the model's parameters and buffers that it has set
  std::vector<std::string> converted{};  ///< those of them that had another dtype there
  std::vector<std::string> left_out{};   ///< the model's parameters and buffers that it has not
  std::vector<std::string> unused{};     ///< tensors there that the model has no place for
};

}  // namespace kolo
#pragma GCC visibility pop
