#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "common/command_line.hpp"

namespace compare {

/// The size of a model and of its batches.
struct Size {
  int blocks = 8;
  std::int64_t width = 256;
  int batch = 2;  ///< samples of each rank in a step
};

struct Options {
  std::vector<std::string> models{"transformer", "convnet", "speech"};
  Size size;                         ///< of the models for memory and time
  std::size_t budget = 128'000'000;  ///< bytes of a rank, for the largest model
  int rounds = 15;                   ///< measured steps of each mode
  int warm_up = 3;                   ///< uncounted steps of each mode before
  std::filesystem::path json;
  std::filesystem::path svg;
};

/// Sets `options`, or returns how to exit after --help or an error.
std::optional<examples::Exit> parse_options(int argc, char** argv, Options& options);

}  // namespace compare
