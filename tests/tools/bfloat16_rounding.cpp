// Compares Kolo's conversion of float32 to bfloat16 with LibTorch's, for every float there is or
// for every n-th:
//
//   bfloat16_rounding [n]
//
// NaN must stay NaN; all others must have the same bits. Prints the first that differs; exit code
// 1.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include <ATen/Functions.h>

#include "base/convert.hpp"

namespace {

constexpr std::uint64_t kFloats = std::uint64_t{1} << 32;
constexpr std::size_t kChunk = std::size_t{1} << 20;

bool is_nan(std::uint16_t bits) { return (bits & 0x7fff) > 0x7f80; }

float float_of(std::uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

/// Prints a line and returns false if the chunk's conversions differ.
bool compare(std::uint64_t first, std::uint64_t step, std::size_t count) {
  static at::Tensor floats = at::empty({static_cast<std::int64_t>(kChunk)}, at::kFloat);
  static std::vector<std::uint16_t> ours(kChunk);
  auto* bits = static_cast<std::uint32_t*>(floats.data_ptr());
  for (std::size_t i = 0; i < count; ++i) bits[i] = static_cast<std::uint32_t>(first + i * step);
  const at::Tensor reference = floats.to(at::kBFloat16);
  const auto* theirs = static_cast<const std::uint16_t*>(reference.const_data_ptr());
  kolo::base::convert(kolo::DType::Float32, bits, kolo::DType::BFloat16, ours.data(), count);
  for (std::size_t i = 0; i < count; ++i) {
    const bool is_right =
        std::isnan(float_of(bits[i])) ? is_nan(ours[i]) && is_nan(theirs[i]) : ours[i] == theirs[i];
    if (is_right) continue;
    std::printf("float 0x%08x (%g): Kolo gives 0x%04x, LibTorch 0x%04x\n", bits[i],
                static_cast<double>(float_of(bits[i])), ours[i], theirs[i]);
    return false;
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  const std::uint64_t step = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 1;
  if (step == 0) {
    std::fprintf(stderr, "usage: bfloat16_rounding [n]: every n-th float, 1 or more\n");
    return 2;
  }
  std::uint64_t compared = 0;
  for (std::uint64_t first = 0; first < kFloats; first += kChunk * step) {
    const std::uint64_t left = (kFloats - first + step - 1) / step;
    const auto count = static_cast<std::size_t>(std::min<std::uint64_t>(kChunk, left));
    if (!compare(first, step, count)) return 1;
    compared += count;
  }
  std::printf("%llu floats, all alike\n", static_cast<unsigned long long>(compared));
  return 0;
}
