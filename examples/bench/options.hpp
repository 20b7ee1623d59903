#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <variant>
#include <vector>

#include "common/command_line.hpp"
#include "kolo/dtype.hpp"

namespace bench {

/// What kolo-bench can be told.
struct Options {
  std::size_t min_bytes = std::size_t{1} << 10;
  std::size_t max_bytes = std::size_t{64} << 20;
  std::size_t factor = 4;
  kolo::DType dtype = kolo::DType::Float32;
  std::vector<std::string> algorithms;  ///< empty: all that fit
  int iterations = 0;                   ///< calls in a block; 0: by size
  int warmup = 2;                       ///< blocks that are not counted
  std::filesystem::path json;           ///< empty: no file
};

/// The options, or how to end after --help or an error. `algorithms`: the names to choose from.
std::variant<Options, examples::Exit> parse_options(int argc, const char* const* argv,
                                                    const std::vector<std::string>& algorithms);

/// The sizes to measure, in bytes.
std::vector<std::size_t> sizes_of(const Options& options);

/// How many calls of `bytes` a block has.
int iterations_of(const Options& options, std::size_t bytes);

}  // namespace bench
