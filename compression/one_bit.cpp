// Sends the sign of each element, and the means of the negative and of all other elements.
//
// Payload of n elements: 8 bytes for the means, then a bit per element; 40 for a full block of 1024
// bytes, which is 25.6 times as long. Error: up to the largest magnitude, so error feedback is
// needed. A NaN or an infinity makes the mean of its sign NaN or infinite. State: none.
#include <array>
#include <cstring>

#include "compression/registry.hpp"

namespace kolo::compression {
namespace {

using Means = std::array<float, 2>;  // of the elements that are not negative, and of the others

class OneBit final : public Codec {
 public:
  std::string_view name() const override { return "one_bit"; }
  std::size_t block() const override { return 256; }
  double error_bound() const override { return 1.0; }
  std::size_t payload_bytes(std::size_t count, int) const override {
    return sizeof(Means) + (count + 7) / 8;
  }

  void encode(std::span<const float> values, int, std::byte* payload) const override {
    Means sums{};
    std::array<std::size_t, 2> counts{};
    std::byte* const signs = payload + sizeof(Means);
    std::memset(signs, 0, (values.size() + 7) / 8);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const std::size_t is_negative = values[i] < 0;
      sums[is_negative] += values[i];
      ++counts[is_negative];
      signs[i / 8] |= static_cast<std::byte>(is_negative << (i % 8));
    }
    for (std::size_t i = 0; i < sums.size(); ++i) {
      if (counts[i] > 0) sums[i] /= static_cast<float>(counts[i]);
    }
    std::memcpy(payload, &sums, sizeof sums);
  }

  void add_decoded(const std::byte* payload, int, std::span<float> values) const override {
    Means means{};
    std::memcpy(&means, payload, sizeof means);
    const std::byte* const signs = payload + sizeof means;
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] += means[std::to_integer<std::size_t>(signs[i / 8] >> (i % 8)) & 1];
    }
  }
};

}  // namespace

const Codec& one_bit() {
  static const OneBit codec;
  return codec;
}

}  // namespace kolo::compression
