#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

namespace mnist {

/// The contents of a file in the IDX format of the MNIST database: an array of bytes of any shape.
struct IdxArray {
  std::vector<std::int64_t> shape;
  std::vector<std::uint8_t> values;  ///< row-major
};

/// Parses a file's contents. Throws std::runtime_error, which says what is wrong with them.
IdxArray parse_idx(std::vector<std::uint8_t> bytes);

/// Reads such a file. Throws std::runtime_error, which names the file and what is
/// wrong with it.
IdxArray read_idx(const std::filesystem::path& path);

}  // namespace mnist
