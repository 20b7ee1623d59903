#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

namespace mnist {

/// What a file in the IDX format of the MNIST database holds: bytes in one array of any shape.
struct IdxArray {
  std::vector<std::int64_t> shape;
  std::vector<std::uint8_t> values;  ///< row-major
};

/// The array of unsigned bytes in a file that holds `bytes`. Throws std::runtime_error, which says
/// what is wrong with it.
IdxArray parse_idx(std::vector<std::uint8_t> bytes);

/// Reads such a file. Throws std::runtime_error, which names the file and what is
/// wrong with it.
IdxArray read_idx(const std::filesystem::path& path);

}  // namespace mnist
