// Codecs that send some elements of each block and leave the others to error feedback: an element
// that is not sent counts as zero. State: none.
//
// top_k sends those of largest magnitude: 2 bytes for the place and 4 for the value of each, or all
// values where that takes no more bytes. The payload of a sum of n has n k elements. NaN counts as
// larger than infinity, and infinity as larger than all else, so both are sent.
//
// random_k sends one element in each of k runs of equal length: 8 bytes for the seed of the
// indices, then 4 per value. The payload of a sum of n has the n k elements of largest magnitude,
// as with top_k. The seed is a hash of the block's values, a sum that GPUs may compute in any
// order. No step counter is needed, a resumed run draws the same indices as an uninterrupted one,
// and other values give other indices. A block with a NaN or an infinity sends only NaN.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "base/codec_format.hpp"
#include "compression/registry.hpp"

namespace kolo::compression {
namespace {

using Place = std::uint16_t;

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
      const std::uint32_t bits = base::magnitude_bits(value);
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
  if (base::is_dense(values.size(), kept)) {
    std::memcpy(payload, values.data(), values.size_bytes());
    return;
  }
  auto [least, ties] = find_threshold(values, kept);
  std::byte* place = payload;
  std::byte* value = payload + kept * sizeof(Place);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::uint32_t bits = base::magnitude_bits(values[i]);
    if (bits < least || (bits == least && ties == 0)) continue;
    if (bits == least) --ties;
    const auto index = static_cast<Place>(i);
    std::memcpy(place, &index, sizeof index);
    std::memcpy(value, &values[i], sizeof(float));
    place += sizeof index;
    value += sizeof(float);
  }
}

/// Adds a payload of `kept` elements to `values`.
void add_sparse(const std::byte* payload, std::size_t kept, std::span<float> values) {
  float value = 0;
  if (base::is_dense(values.size(), kept)) {
    for (float& sum : values) {
      std::memcpy(&value, payload, sizeof value);
      sum += value;
      payload += sizeof value;
    }
    return;
  }
  const std::byte* place = payload;
  const std::byte* next = payload + kept * sizeof(Place);
  for (std::size_t i = 0; i < kept; ++i) {
    Place index = 0;
    std::memcpy(&index, place + i * sizeof index, sizeof index);
    std::memcpy(&value, next + i * sizeof value, sizeof value);
    values[index] += value;
  }
}

std::uint64_t hash_of(std::span<const float> values) {
  std::uint64_t hash = 0;
  for (std::size_t i = 0; i < values.size(); ++i) hash += base::random_k_hash(values[i], i);
  return base::random_k_seed(hash, values.size());
}

/// Calls `visit(place)` for `kept` of `count` places, ascending.
template <class Visit>
void for_each_place(std::uint64_t seed, std::size_t count, std::size_t kept, const Visit& visit) {
  for (std::size_t i = 0; i < kept; ++i) visit(base::random_k_place(seed, i, count, kept));
}

class RandomK final : public CodecWithGpuKernels {
 public:
  RandomK(std::string name, double fraction)
      : CodecWithGpuKernels({.kind = base::CodecKind::RandomK, .fraction = fraction}),
        name_(std::move(name)) {}

  std::string_view name() const override { return name_; }
  double error_bound() const override { return 1.0; }

  void encode(std::span<const float> values, int terms, std::byte* payload) const override {
    const std::size_t kept = format().kept(values.size(), terms);
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
    const std::size_t kept = format().kept(values.size(), terms);
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

 private:
  std::string name_;
};

class TopK final : public CodecWithGpuKernels {
 public:
  TopK(std::string name, double fraction)
      : CodecWithGpuKernels({.kind = base::CodecKind::TopK, .fraction = fraction}),
        name_(std::move(name)) {}

  std::string_view name() const override { return name_; }
  double error_bound() const override { return 1.0; }
  void encode(std::span<const float> values, int terms, std::byte* payload) const override {
    write_largest(values, format().kept(values.size(), terms), payload);
  }
  void add_decoded(const std::byte* payload, int terms, std::span<float> values) const override {
    add_sparse(payload, format().kept(values.size(), terms), values);
  }

 private:
  std::string name_;
};

}  // namespace

std::unique_ptr<const Codec> top_k(std::string name, double fraction) {
  return std::make_unique<TopK>(std::move(name), fraction);
}

std::unique_ptr<const Codec> random_k(std::string name, double fraction) {
  return std::make_unique<RandomK>(std::move(name), fraction);
}

}  // namespace kolo::compression
