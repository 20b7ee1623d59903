#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "kolo/shard.hpp"

/// What shard_benchmark measures. Each function prints its results on rank 0 and returns them, and
/// sets `is_met` to whether they are within their bounds. Collective.
namespace shard {

struct Options {
  bool memory = false;                              ///< measure it instead of time
  std::optional<std::filesystem::path> checkpoint;  ///< measure saving, into this folder, instead
  std::filesystem::path json;

  // Of time.
  std::vector<std::string> models{"gpt-medium", "resnet50"};
  int image = 64;  ///< pixels
  int batch = 8;   ///< images of each rank in a step
  int rounds = 31;
  int warm_up = 3;     ///< rounds before; the first step lays out and shards
  bool watch = false;  ///< compare steps with and without watched operators, not modes

  // Of memory.
  std::optional<kolo::Shard> shard;
  int layers = 12;
  int width = 384;
};

/// The limit of a step's bytes, relative to what a rank must send. Flags that say which gradients
/// exist are extra.
inline constexpr double kMaxBytesSentRatio = 1.01;

/// Trains each model of `options` in all modes in a race, each mode with its own model and
/// optimizer.
nlohmann::ordered_json measure_speed(const Options& options, bool& is_met);

/// Trains a GPT with AdamW in the mode of `options` for three steps: what the optimizer reports,
/// what the kernel counts, and the peaks.
nlohmann::ordered_json measure_memory(const Options& options, bool& is_met);

/// Trains GPT medium with AdamW, and saves checkpoints of it into options.checkpoint, in turns with
/// plain write and fsync of as many bytes: the times of both, their ratio, and the growth of peak
/// resident memory in the first save, on the rank with most.
nlohmann::ordered_json measure_saving(const Options& options, bool& is_met);

}  // namespace shard
