#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>

namespace kolo::compression {

/// Elements of a block of sparse codecs: their places fit 16 bits, and a fraction of a hundredth is
/// well resolved.
inline constexpr std::size_t kSparseBlock = std::size_t{16} << 10;

/// How many of `count` elements a payload has: `fraction` of them, for each of `terms` payloads
/// whose sum it holds.
inline std::size_t kept_elements(std::size_t count, double fraction, int terms) {
  const auto own = static_cast<std::size_t>(std::ceil(static_cast<double>(count) * fraction));
  return std::min(count, own * static_cast<std::size_t>(terms));
}

/// A payload of `kept` of `count` elements: their places, 2 bytes each, then their values; or all
/// values, where that takes no more bytes.
std::size_t sparse_payload_bytes(std::size_t count, std::size_t kept);
/// Writes the `kept` elements of largest magnitude, the first ones among equals.
void write_largest(std::span<const float> values, std::size_t kept, std::byte* payload);
/// Adds a payload of `kept` elements to `values`.
void add_sparse(const std::byte* payload, std::size_t kept, std::span<float> values);

}  // namespace kolo::compression
