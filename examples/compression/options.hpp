#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "common/command_line.hpp"
#include "gpt/options.hpp"

namespace compression {

/// The settings of the kinds of compression that have any.
struct Settings {
  int rank = 4;                  ///< of PowerSGD's approximations
  std::int64_t start_step = 20;  ///< the first that PowerSGD compresses
  double fraction = 0.01;        ///< of elements that top_k and random_k send
};

struct Options {
  std::string preset = "small";
  std::string optimizer = "adamw";
  gpt::Options training;  ///< the model, and how it learns
  Settings settings;
  std::vector<std::string> cases;  ///< empty: all
  std::filesystem::path json;
  std::filesystem::path svg;
};

/// Sets `options`, or returns how to exit after --help or an error.
std::optional<examples::Exit> parse_options(int argc, const char* const* argv, Options& options);

}  // namespace compression
