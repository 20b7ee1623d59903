// Sends eight bits per element: a multiple of its block's largest magnitude / 127.
//
// Payload of n elements: 4 bytes for the unit, then n bytes; 260 for a full block of 1024 bytes,
// which is 3.938 times as long. Error: half a unit, at most 1/254 of the largest magnitude. A block
// with a NaN or an infinity decodes to NaN. State: none.
#include "base/simd_targets.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compression/int8.cpp"
#include <hwy/foreach_target.h>
// Must come after foreach_target.h.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "base/simd_lanes-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace kolo::compression::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using F32 = hn::ScalableTag<float>;
using S32 = hn::RebindToSigned<F32>;
using S8 = hn::Rebind<std::int8_t, F32>;

constexpr std::int32_t kMagnitudeBits = 0x7FFFFFFF;

/// Compares bits as integers, so that NaN is larger than infinity, and infinity larger than all
/// else.
float largest_magnitude(const float* values, std::size_t count) {
  const F32 floats;
  const S32 integers;
  const std::size_t lanes = hn::Lanes(floats);
  auto largest = hn::Zero(integers);
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto bits = hn::BitCast(integers, hn::LoadU(floats, values + i));
    largest = hn::Max(largest, hn::And(bits, hn::Set(integers, kMagnitudeBits)));
  }
  std::int32_t most = hn::GetLane(hn::MaxOfLanes(integers, largest));
  for (; i < count; ++i) {
    most = std::max(most, std::bit_cast<std::int32_t>(values[i]) & kMagnitudeBits);
  }
  return std::bit_cast<float>(most);
}

/// Rounds to nearest, ties to even.
void encode_int8(const float* values, std::size_t count, float per_unit, std::int8_t* codes) {
  const F32 floats;
  const std::size_t lanes = hn::Lanes(floats);
  const auto factor = hn::Set(floats, per_unit);
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto scaled = hn::Mul(hn::LoadU(floats, values + i), factor);
    hn::StoreU(hn::DemoteTo(S8(), hn::NearestInt(scaled)), S8(), codes + i);
  }
  for (; i < count; ++i) codes[i] = static_cast<std::int8_t>(std::nearbyint(values[i] * per_unit));
}

void add_int8(const std::int8_t* codes, std::size_t count, float unit, float* values) {
  const F32 floats;
  const S32 integers;
  const std::size_t lanes = hn::Lanes(floats);
  const auto factor = hn::Set(floats, unit);
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto code = hn::ConvertTo(floats, hn::PromoteTo(integers, hn::LoadU(S8(), codes + i)));
    const auto sum = hn::Add(hn::LoadU(floats, values + i), hn::Mul(code, factor));
    hn::StoreU(sum, floats, values + i);
  }
  for (; i < count; ++i) values[i] += static_cast<float>(codes[i]) * unit;
}

}  // namespace kolo::compression::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "compression/registry.hpp"

namespace kolo::compression {
namespace {

HWY_EXPORT(largest_magnitude);
HWY_EXPORT(encode_int8);
HWY_EXPORT(add_int8);

/// The value of one unit in a block whose largest magnitude is `largest`. Units below the smallest
/// normal number would be inexact or zero.
float unit_of(float largest) {
  using Limits = std::numeric_limits<float>;
  return std::isfinite(largest) ? std::max(largest / 127.0F, Limits::min()) : Limits::quiet_NaN();
}

class Int8 final : public Codec {
 public:
  std::string_view name() const override { return "int8"; }
  std::size_t block() const override { return 256; }
  double error_bound() const override { return 1.0 / 253; }  // half a unit, and rounding
  std::size_t payload_bytes(std::size_t count, int) const override { return sizeof(float) + count; }

  void encode(std::span<const float> values, int, std::byte* payload) const override {
    const float largest = HWY_DYNAMIC_DISPATCH(largest_magnitude)(values.data(), values.size());
    const float unit = unit_of(largest);
    std::memcpy(payload, &unit, sizeof unit);
    auto* const codes = reinterpret_cast<std::int8_t*>(payload + sizeof unit);
    if (std::isnan(unit)) {
      std::memset(codes, 1, values.size());
      return;
    }
    HWY_DYNAMIC_DISPATCH(encode_int8)(values.data(), values.size(), 1.0f / unit, codes);
  }

  void add_decoded(const std::byte* payload, int, std::span<float> values) const override {
    float unit = 0;
    std::memcpy(&unit, payload, sizeof unit);
    const auto* const codes = reinterpret_cast<const std::int8_t*>(payload + sizeof unit);
    HWY_DYNAMIC_DISPATCH(add_int8)(codes, values.size(), unit, values.data());
  }
};

}  // namespace

const Codec& int8() {
  static const Int8 codec;
  return codec;
}

}  // namespace kolo::compression
#endif  // HWY_ONCE
