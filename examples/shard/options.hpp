#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "common/command_line.hpp"
#include "kolo/shard.hpp"

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

/// Sets `options`, or returns how to exit after --help or an error.
std::optional<examples::Exit> parse_options(int argc, char** argv, Options& options);

}  // namespace shard
