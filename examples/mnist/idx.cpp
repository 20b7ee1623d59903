#include "mnist/idx.hpp"

#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <stdexcept>
#include <string>

namespace mnist {
namespace {

constexpr int kUnsignedByte = 0x08;
constexpr int kMostDimensions = 4;
constexpr std::int64_t kMostValues = std::int64_t{1} << 32;

[[noreturn]] void reject(const std::filesystem::path& path, const std::string& why) {
  throw std::runtime_error(path.string() + ": " + why);
}

}  // namespace

IdxArray read_idx(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) reject(path, std::strerror(errno));
  // Two zeros, the type, the number of dimensions; then every extent as 32 bits, big end first.
  std::array<unsigned char, 4> magic{};
  file.read(reinterpret_cast<char*>(magic.data()), magic.size());
  const bool is_gzip = magic[0] == 0x1f && magic[1] == 0x8b;
  if (file && is_gzip) reject(path, "it is compressed. Unpack it with gunzip -k first.");
  if (!file || magic[0] != 0 || magic[1] != 0) reject(path, "it is not an IDX file");
  if (magic[2] != kUnsignedByte) reject(path, "its values are not unsigned bytes");
  if (magic[3] == 0 || magic[3] > kMostDimensions) {
    reject(path, "it has " + std::to_string(magic[3]) + " dimensions, expected 1 to 4");
  }
  IdxArray array;
  std::int64_t count = 1;
  for (int i = 0; i < magic[3]; ++i) {
    std::array<unsigned char, 4> bytes{};
    file.read(reinterpret_cast<char*>(bytes.data()), bytes.size());
    std::int64_t extent = 0;
    for (const unsigned char byte : bytes) extent = extent * 256 + byte;
    array.shape.push_back(extent);
    if (extent > 0 && count > kMostValues / extent) reject(path, "it claims to be too large");
    count *= extent;
  }
  array.values.resize(static_cast<std::size_t>(count));
  file.read(reinterpret_cast<char*>(array.values.data()), count);
  if (!file) {
    reject(path, "it ends after " + std::to_string(file.gcount()) + " of " + std::to_string(count) +
                     " values");
  }
  return array;
}

}  // namespace mnist
