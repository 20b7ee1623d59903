#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "base/random.hpp"

/// The payloads of the built-in codecs, on CPUs and GPUs; the files of compression/ explain them.
namespace kolo::base {

enum class CodecKind : std::uint8_t { Int8, OneBit, TopK, RandomK };

/// Elements of a block of int8 and one_bit.
inline constexpr std::size_t kSmallBlock = 256;
/// Elements of a block of sparse codecs: indices fit into 16 bits, and a fraction of a hundredth is
/// well resolved.
inline constexpr std::size_t kSparseBlock = std::size_t{16} << 10;

/// Bytes of an element of a sparse payload.
inline constexpr std::size_t kPlaceBytes = sizeof(std::uint16_t);
inline constexpr std::size_t kSparseBytes = kPlaceBytes + sizeof(float);

/// Whether a payload holds all `count` values instead of the `kept` largest and their indices,
/// because that takes no more bytes.
constexpr bool is_dense(std::size_t count, std::size_t kept) {
  return kept * kSparseBytes >= count * sizeof(float);
}

/// A built-in codec.
struct CodecFormat {
  CodecKind kind = CodecKind::Int8;
  double fraction = 1.0;  ///< sparse codecs: the share of elements that is kept, in (0, 1]

  constexpr bool is_sparse() const { return kind == CodecKind::TopK || kind == CodecKind::RandomK; }
  constexpr std::size_t block() const { return is_sparse() ? kSparseBlock : kSmallBlock; }
  /// Sparse codecs: whether the payload holds randomly placed elements rather than the largest.
  constexpr bool is_random(int terms) const { return kind == CodecKind::RandomK && terms == 1; }

  /// Sparse codecs: the number of elements in a payload: `fraction` of `count`, rounded up, for
  /// each of the `terms` payloads that it sums.
  constexpr std::size_t kept(std::size_t count, int terms) const {
    const double exact = static_cast<double>(count) * fraction;
    const auto down = static_cast<std::size_t>(exact);
    const std::size_t own = down + (static_cast<double>(down) < exact ? 1 : 0);
    const std::size_t all = own * static_cast<std::size_t>(terms);
    return all < count ? all : count;
  }

  /// See Codec.
  constexpr std::size_t payload_bytes(std::size_t count, int terms) const {
    if (kind == CodecKind::Int8) return sizeof(float) + count;
    if (kind == CodecKind::OneBit) return 2 * sizeof(float) + (count + 7) / 8;
    const std::size_t elements = kept(count, terms);
    if (is_random(terms)) return sizeof(std::uint64_t) + elements * sizeof(float);
    return is_dense(count, elements) ? count * sizeof(float) : elements * kSparseBytes;
  }
};

/// Bits that order floats by magnitude: NaN above infinity, infinity above all finite values.
constexpr std::uint32_t magnitude_bits(float value) {
  return std::bit_cast<std::uint32_t>(value) & 0x7FFFFFFF;
}
/// std::isfinite, on GPUs too.
constexpr bool is_finite(float value) { return magnitude_bits(value) < 0x7F800000; }

/// The value of one unit of int8 in a block whose largest magnitude is `largest`. Units below the
/// smallest normal number would be inexact or zero.
constexpr float int8_unit(float largest) {
  if (!is_finite(largest)) return std::numeric_limits<float>::quiet_NaN();
  const float unit = largest / 127.0F;
  constexpr float kMinUnit = std::numeric_limits<float>::min();
  return unit < kMinUnit ? kMinUnit : unit;
}

/// The contribution of an element to the hash of its block, from which random_k draws its indices.
constexpr std::uint64_t random_k_hash(float value, std::size_t index) {
  std::uint64_t state =
      static_cast<std::uint64_t>(index) << 32 | std::bit_cast<std::uint32_t>(value);
  return next_random(state);
}
/// The seed of a block of `count` elements; `hash` is the sum of random_k_hash over them.
constexpr std::uint64_t random_k_seed(std::uint64_t hash, std::size_t count) {
  hash += count;
  return next_random(hash);
}
/// The index of kept element `i`: a random one in the `i`-th of the `kept` runs of nearly equal
/// length into which the block's `count` elements are divided.
constexpr std::size_t random_k_place(std::uint64_t seed, std::size_t i, std::size_t count,
                                     std::size_t kept) {
  const std::size_t begin = i * count / kept;
  const std::size_t length = (i + 1) * count / kept - begin;
  std::uint64_t state = state_after(seed, i);
  return begin + static_cast<std::size_t>(next_random(state) % length);
}

}  // namespace kolo::base
