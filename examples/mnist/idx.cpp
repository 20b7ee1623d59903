#include "mnist/idx.hpp"

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <ios>
#include <stdexcept>
#include <string>
#include <utility>

namespace mnist {
namespace {

constexpr std::uint8_t kUnsignedByte = 0x08;
constexpr std::size_t kMagicBytes = 4;
constexpr std::size_t kExtentBytes = 4;
constexpr int kMaxDimensions = 4;
constexpr std::int64_t kMaxValues = std::int64_t{1} << 32;

[[noreturn]] void reject(const std::string& why) { throw std::runtime_error(why); }

/// The number of dimensions, which follows two zeros and the type.
int parse_magic(const std::vector<std::uint8_t>& bytes) {
  const bool is_gzip = bytes.size() >= 2 && bytes[0] == 0x1f && bytes[1] == 0x8b;
  if (is_gzip) reject("it is compressed. Unpack it with gunzip -k first.");
  if (bytes.size() < kMagicBytes || bytes[0] != 0 || bytes[1] != 0) reject("it is not an IDX file");
  if (bytes[2] != kUnsignedByte) reject("its values are not unsigned bytes");
  if (bytes[3] == 0 || bytes[3] > kMaxDimensions) {
    reject("it has " + std::to_string(bytes[3]) + " dimensions, expected 1 to 4");
  }
  return bytes[3];
}

/// Extents of 32 bits each, big-endian. Their product is limited even if one is zero, since
/// LibTorch computes strides all the same.
std::vector<std::int64_t> parse_shape(const std::vector<std::uint8_t>& bytes, int dimensions) {
  std::vector<std::int64_t> shape;
  std::int64_t most = 1;  // values, if no extent is zero
  const std::uint8_t* next = bytes.data() + kMagicBytes;
  for (int i = 0; i < dimensions; ++i) {
    std::int64_t extent = 0;
    for (std::size_t k = 0; k < kExtentBytes; ++k) extent = extent * 256 + *next++;
    shape.push_back(extent);
    if (extent > 0 && most > kMaxValues / extent) reject("it claims to be too large");
    if (extent > 0) most *= extent;
  }
  return shape;
}

std::vector<std::uint8_t> read_bytes(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) reject(std::strerror(errno));
  if (!std::filesystem::is_regular_file(path)) reject("it is no file");
  const std::streamoff size = file.tellg();
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(size));
  file.seekg(0);
  file.read(reinterpret_cast<char*>(bytes.data()), size);
  if (!file) reject("it cannot be read");
  return bytes;
}

}  // namespace

IdxArray parse_idx(std::vector<std::uint8_t> bytes) {
  const int dimensions = parse_magic(bytes);
  const std::size_t header = kMagicBytes + kExtentBytes * static_cast<std::size_t>(dimensions);
  if (bytes.size() < header) reject("it ends within its header");
  IdxArray array{parse_shape(bytes, dimensions), std::move(bytes)};
  array.values.erase(array.values.begin(),
                     array.values.begin() + static_cast<std::ptrdiff_t>(header));
  std::size_t count = 1;
  for (const std::int64_t extent : array.shape) count *= static_cast<std::size_t>(extent);
  if (array.values.size() < count) {
    reject("it ends after " + std::to_string(array.values.size()) + " of " + std::to_string(count) +
           " values");
  }
  if (array.values.size() > count) {
    reject("it goes on after its " + std::to_string(count) + " values");
  }
  return array;
}

IdxArray read_idx(const std::filesystem::path& path) {
  try {
    return parse_idx(read_bytes(path));
  } catch (const std::runtime_error& error) {
    throw std::runtime_error(path.string() + ": " + error.what());
  }
}

}  // namespace mnist
