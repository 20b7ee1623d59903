#include "compression/sparse_payload.hpp"

#include <array>
#include <cstdint>
#include <cstring>

#include "base/codec_format.hpp"

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

}  // namespace

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

}  // namespace kolo::compression
