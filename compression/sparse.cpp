// Codecs that send some elements of each block and leave the others to error feedback: an element
// that is not sent counts as zero. State: none.
//
// top_k sends those of largest magnitude: 2 bytes for the place and 4 for the value of each, or all
// values where that takes no more bytes. The payload of a sum of n has n k elements. NaN counts as
// larger than infinity, and infinity as larger than all else, so both are sent.
//
// random_k sends one element in each of k runs of equal length: 8 bytes for the seed of the
// indices, then 4 per value. The payload of a sum of n has the n k elements of largest magnitude,
// as with top_k. The seed is a hash of the block's values. No step counter is needed, a resumed run
// draws the same indices as an uninterrupted one, and other values give other indices. A block with
// a NaN or an infinity sends only NaN.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "base/random.hpp"
#include "compression/registry.hpp"

namespace kolo::compression {
namespace {

using Index = std::uint16_t;
constexpr std::size_t kElementBytes = sizeof(Index) + sizeof(float);  // of a sparse payload

/// Whether a payload holds all `count` values instead of the `kept` largest and their places,
/// because that takes no more bytes.
bool is_dense(std::size_t count, std::size_t kept) {
  return kept * kElementBytes >= count * sizeof(float);
}

/// Bits that order floats by magnitude: NaN above infinity, infinity above all finite values.
std::uint32_t magnitude_bits(float value) {
  return std::bit_cast<std::uint32_t>(value) & 0x7FFFFFFF;
}

/// The magnitude of the element at position `kept` in descending order, and how many with exactly
/// that magnitude are among the first `kept`.
struct Threshold {
  std::uint32_t magnitude;
  std::size_t ties;
};

/// By digits of the magnitude, from the highest on: each pass counts the elements that agree with
/// the threshold so far. Four passes for any number of elements, where a sort would take sixteen.
Threshold find_threshold(std::span<const float> values, std::size_t kept) {
  constexpr unsigned kDigitBits = 8;
  Threshold threshold{0, kept};
  std::uint32_t known = 0;  // mask of the digits that are decided
  for (unsigned shift = 32 - kDigitBits;; shift -= kDigitBits) {
    std::array<std::uint32_t, 1 << kDigitBits> counts{};
    for (const float value : values) {
      const std::uint32_t bits = magnitude_bits(value);
      if ((bits & known) == threshold.magnitude) ++counts[bits >> shift & (counts.size() - 1)];
    }
    std::size_t digit = counts.size() - 1;
    while (counts[digit] < threshold.ties) threshold.ties -= counts[digit--];
    threshold.magnitude |= static_cast<std::uint32_t>(digit) << shift;
    known |= static_cast<std::uint32_t>(counts.size() - 1) << shift;
    if (shift == 0) return threshold;
  }
}

/// Writes the `kept` elements of largest magnitude, the first ones among equals.
void write_largest(std::span<const float> values, std::size_t kept, std::byte* payload) {
  if (is_dense(values.size(), kept)) {
    std::memcpy(payload, values.data(), values.size_bytes());
    return;
  }
  auto [least, ties] = find_threshold(values, kept);
  std::byte* place = payload;
  std::byte* value = payload + kept * sizeof(Index);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::uint32_t bits = magnitude_bits(values[i]);
    if (bits < least || (bits == least && ties == 0)) continue;
    if (bits == least) --ties;
    const auto index = static_cast<Index>(i);
    std::memcpy(place, &index, sizeof index);
    std::memcpy(value, &values[i], sizeof(float));
    place += sizeof index;
    value += sizeof(float);
  }
}

/// Adds a payload of `kept` elements to `values`.
void add_sparse(const std::byte* payload, std::size_t kept, std::span<float> values) {
  float value = 0;
  if (is_dense(values.size(), kept)) {
    for (float& sum : values) {
      std::memcpy(&value, payload, sizeof value);
      sum += value;
      payload += sizeof value;
    }
    return;
  }
  const std::byte* place = payload;
  const std::byte* next = payload + kept * sizeof(Index);
  for (std::size_t i = 0; i < kept; ++i) {
    Index index = 0;
    std::memcpy(&index, place + i * sizeof index, sizeof index);
    std::memcpy(&value, next + i * sizeof value, sizeof value);
    values[index] += value;
  }
}

/// The seed of a block.
std::uint64_t hash_of(std::span<const float> values) {
  std::uint64_t hash = values.size();
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::uint64_t state = i << 32 | std::bit_cast<std::uint32_t>(values[i]);
    hash += next_random(state);
  }
  return next_random(hash);
}

/// Calls `visit(place)` for `kept` of `count` places, ascending: a random one in each of as many
/// runs of nearly equal length.
template <class Visit>
void for_each_place(std::uint64_t seed, std::size_t count, std::size_t kept, const Visit& visit) {
  for (std::size_t i = 0; i < kept; ++i) {
    const std::size_t begin = i * count / kept;
    const std::size_t length = (i + 1) * count / kept - begin;
    visit(begin + static_cast<std::size_t>(next_random(seed) % length));
  }
}

class Sparse : public Codec {
 public:
  Sparse(std::string name, double fraction) : name_(std::move(name)), fraction_(fraction) {}

  std::string_view name() const override { return name_; }
  /// Places fit into 16 bits, and a fraction of a hundredth is well resolved.
  std::size_t block() const override { return std::size_t{16} << 10; }
  double error_bound() const override { return 1.0; }
  std::size_t payload_bytes(std::size_t count, int terms) const override {
    const std::size_t kept = this->kept(count, terms);
    return is_dense(count, kept) ? count * sizeof(float) : kept * kElementBytes;
  }

 protected:
  /// The elements in a payload: the fraction of `count`, rounded up, for each of the `terms`
  /// payloads that it sums.
  std::size_t kept(std::size_t count, int terms) const {
    const auto own = static_cast<std::size_t>(std::ceil(static_cast<double>(count) * fraction_));
    return std::min(own * static_cast<std::size_t>(terms), count);
  }

 private:
  std::string name_;
  double fraction_;
};

class RandomK final : public Sparse {
 public:
  using Sparse::Sparse;

  std::size_t payload_bytes(std::size_t count, int terms) const override {
    if (terms > 1) return Sparse::payload_bytes(count, terms);
    return sizeof(std::uint64_t) + kept(count, terms) * sizeof(float);
  }

  void encode(std::span<const float> values, int terms, std::byte* payload) const override {
    const std::size_t kept = this->kept(values.size(), terms);
    if (terms > 1) return write_largest(values, kept, payload);
    const std::uint64_t seed = hash_of(values);
    std::memcpy(payload, &seed, sizeof seed);
    const bool is_finite = std::ranges::all_of(values, [](float x) { return std::isfinite(x); });
    constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
    std::byte* to = payload + sizeof seed;
    for_each_place(seed, values.size(), kept, [&](std::size_t place) {
      std::memcpy(to, is_finite ? &values[place] : &kNaN, sizeof(float));
      to += sizeof(float);
    });
  }

  void add_decoded(const std::byte* payload, int terms, std::span<float> values) const override {
    const std::size_t kept = this->kept(values.size(), terms);
    if (terms > 1) return add_sparse(payload, kept, values);
    std::uint64_t seed = 0;
    std::memcpy(&seed, payload, sizeof seed);
    const std::byte* from = payload + sizeof seed;
    for_each_place(seed, values.size(), kept, [&](std::size_t place) {
      float value = 0;
      std::memcpy(&value, from, sizeof value);
      values[place] += value;
      from += sizeof value;
    });
  }
};

class TopK final : public Sparse {
 public:
  using Sparse::Sparse;

  void encode(std::span<const float> values, int terms, std::byte* payload) const override {
    write_largest(values, kept(values.size(), terms), payload);
  }
  void add_decoded(const std::byte* payload, int terms, std::span<float> values) const override {
    add_sparse(payload, kept(values.size(), terms), values);
  }
};

}  // namespace

std::unique_ptr<const Codec> top_k(std::string name, double fraction) {
  return std::make_unique<TopK>(std::move(name), fraction);
}

std::unique_ptr<const Codec> random_k(std::string name, double fraction) {
  return std::make_unique<RandomK>(std::move(name), fraction);
}

}  // namespace kolo::compression
