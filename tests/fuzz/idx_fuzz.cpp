// Feeds files in the IDX format of the MNIST database. Beyond "no crash":
//   - a rejected file throws std::runtime_error;
//   - memory stays within a multiple of the file's size;
//   - an accepted file is the same when it is written again.

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "fuzz/fuzz_target.hpp"
#include "mnist/idx.hpp"

namespace kolo::fuzz {
namespace {

constexpr std::size_t kLargestGrowth = 2;
constexpr std::size_t kConstant = 4096;

std::vector<std::uint8_t> encode(const mnist::IdxArray& array) {
  std::vector<std::uint8_t> bytes{0, 0, 8, static_cast<std::uint8_t>(array.shape.size())};
  for (const std::int64_t extent : array.shape) {
    for (int shift = 24; shift >= 0; shift -= 8) {
      bytes.push_back(static_cast<std::uint8_t>(extent >> shift));
    }
  }
  bytes.insert(bytes.end(), array.values.begin(), array.values.end());
  return bytes;
}

}  // namespace

std::vector<std::string> seeds() {
  return {std::string("\0\0\10\1\0\0\0\3abc", 11),
          std::string("\0\0\10\3\0\0\0\1\0\0\0\2\0\0\0\3abcdef", 22),
          std::string("\0\0\10\2\0\0\0\0\377\377\377\377", 12),
          std::string("\0\0\10\4\377\377\377\377\0\0\0\1\0\0\0\1\0\0\0\1x", 21),
          std::string("\37\213\10\0", 4)};
}

}  // namespace kolo::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kolo::fuzz;
  const std::vector<std::uint8_t> file(data, data + size);
  mnist::IdxArray array;
  try {
    const AllocationBudget budget(size * kLargestGrowth + kConstant);
    array = mnist::parse_idx(file);
  } catch (const std::runtime_error&) {
    return 0;
  }
  require(encode(array) == file, "encode(parse(x)) is x");
  return 0;
}
