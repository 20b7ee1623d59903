// Loads and stores of the floating element types for each SIMD target, shared by all kernels. Files
// that include hwy/foreach_target.h include this file once per target, so its guard flips instead
// of being set once.
#if defined(KOLO_BASE_SIMD_LANES_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef KOLO_BASE_SIMD_LANES_INL_HPP
#undef KOLO_BASE_SIMD_LANES_INL_HPP
#else
#define KOLO_BASE_SIMD_LANES_INL_HPP
#endif

#include <cstddef>
#include <cstdint>

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace kolo::base::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::ScalableTag<float>;
using U32 = hn::RebindToUnsigned<F32>;
using S32 = hn::RebindToSigned<F32>;
using U16 = hn::Rebind<std::uint16_t, F32>;  // as many 16-bit lanes as F32 has lanes
using F32Vector = hn::Vec<F32>;

/// The low halves of 32-bit lanes, all below 2^16, as 16-bit lanes.
HWY_INLINE hn::Vec<U16> narrow(hn::Vec<U32> bits) {
  return hn::DemoteTo(U16(), hn::BitCast(S32(), bits));
}

/// Elements of type T that are computed in that type.
template <class T>
struct PlainLanes {
  using Element = T;
  using D = hn::ScalableTag<T>;
  using Vector = hn::Vec<D>;

  static HWY_INLINE std::size_t size() { return hn::Lanes(D()); }
  static HWY_INLINE Vector load(const T* from) { return hn::LoadU(D(), from); }
  static HWY_INLINE void store(Vector value, T* to) { hn::StoreU(value, D(), to); }
};

/// bfloat16 in memory, float32 in registers. Rounds to nearest, ties to even, with integer
/// arithmetic: Highway 1.0 truncates, and the hardware's instruction flushes subnormals.
struct BFloat16Lanes {
  using Element = std::uint16_t;
  using D = F32;
  using Vector = F32Vector;

  static HWY_INLINE std::size_t size() { return hn::Lanes(D()); }
  static HWY_INLINE Vector load(const Element* from) {
    return hn::BitCast(D(), hn::ShiftLeft<16>(hn::PromoteTo(U32(), hn::LoadU(U16(), from))));
  }
  static HWY_INLINE void store(Vector value, Element* to) {
    const U32 d;
    const auto bits = hn::BitCast(d, value);
    const auto upper = hn::ShiftRight<16>(bits);
    const auto is_odd = hn::And(upper, hn::Set(d, 1));
    const auto rounded = hn::ShiftRight<16>(hn::Add(hn::Add(bits, hn::Set(d, 0x7FFF)), is_odd));
    // Rounding could carry a NaN's mantissa into the exponent; the quiet bit keeps it a NaN.
    const auto quiet = hn::Or(upper, hn::Set(d, 0x40));
    const auto is_nan = hn::RebindMask(d, hn::IsNaN(value));
    hn::StoreU(narrow(hn::IfThenElse(is_nan, quiet, rounded)), U16(), to);
  }
};

/// IEEE binary16 in memory, float32 in registers.
struct Float16Lanes {
  using Element = std::uint16_t;
  using D = F32;
  using Vector = F32Vector;

  static HWY_INLINE std::size_t size() { return hn::Lanes(D()); }

#if (HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2) || HWY_ARCH_ARM_A64
  using F16 = hn::Rebind<hwy::float16_t, F32>;

  static HWY_INLINE Vector load(const Element* from) {
    return hn::PromoteTo(D(), hn::BitCast(F16(), hn::LoadU(U16(), from)));
  }
  static HWY_INLINE void store(Vector value, Element* to) {
    hn::StoreU(hn::BitCast(U16(), hn::DemoteTo(F16(), value)), U16(), to);
  }
#else
  // Highway's emulation truncates and has no infinities. Here an integer addition moves the
  // exponent, and a float addition whose result has the right unit in the last place rounds
  // subnormals. No operand is subnormal in float32, so flush-to-zero modes do not matter.
  static HWY_INLINE Vector load(const Element* from) {
    const U32 d;
    const auto half = hn::PromoteTo(d, hn::LoadU(U16(), from));
    const auto sign = hn::ShiftLeft<16>(hn::And(half, hn::Set(d, 0x8000)));
    const auto magnitude = hn::ShiftLeft<13>(hn::And(half, hn::Set(d, 0x7FFF)));
    const auto exponent = hn::And(magnitude, hn::Set(d, 0x0F800000));
    const auto rebias = hn::Set(d, (127 - 15) << 23);
    const auto normal = hn::Add(magnitude, rebias);
    const auto special = hn::Add(normal, rebias);  // infinity and NaN: the highest exponent
    const auto smallest_normal = hn::Set(d, 113 << 23);
    const auto subnormal =
        hn::BitCast(d, hn::Sub(hn::BitCast(D(), hn::Add(magnitude, smallest_normal)),
                               hn::BitCast(D(), smallest_normal)));
    const auto is_special = hn::Eq(exponent, hn::Set(d, 0x0F800000));
    const auto is_subnormal = hn::Eq(exponent, hn::Zero(d));
    const auto value =
        hn::IfThenElse(is_subnormal, subnormal, hn::IfThenElse(is_special, special, normal));
    return hn::BitCast(D(), hn::Or(value, sign));
  }
  static HWY_INLINE void store(Vector value, Element* to) {
    const U32 d;
    const auto bits = hn::BitCast(d, value);
    const auto sign = hn::And(hn::ShiftRight<16>(bits), hn::Set(d, 0x8000));
    const auto magnitude = hn::Abs(value);
    const auto magnitude_bits = hn::BitCast(d, magnitude);
    const auto is_odd = hn::And(hn::ShiftRight<13>(magnitude_bits), hn::Set(d, 1));
    const auto rebias = hn::Set(d, (127 - 15) << 23);
    const auto normal = hn::ShiftRight<13>(
        hn::Add(hn::Sub(magnitude_bits, rebias), hn::Add(hn::Set(d, 0xFFF), is_odd)));
    const auto unit = hn::Set(d, (127 - 15 + 23 - 10 + 1) << 23);  // 0.5: its last place is 2^-24
    const auto subnormal =
        hn::Sub(hn::BitCast(d, hn::Add(magnitude, hn::BitCast(D(), unit))), unit);
    // 65520 is halfway between the largest finite value and 2^16; ties to even make it infinity.
    const auto overflows = hn::RebindMask(d, hn::Ge(magnitude, hn::Set(D(), 65520.0f)));
    const auto is_subnormal = hn::RebindMask(d, hn::Lt(magnitude, hn::Set(D(), 0x1p-14f)));
    const auto is_nan = hn::RebindMask(d, hn::IsNaN(value));
    auto half = hn::IfThenElse(is_subnormal, subnormal, normal);
    half = hn::IfThenElse(overflows, hn::Set(d, 0x7C00), half);
    half = hn::IfThenElse(is_nan, hn::Set(d, 0x7E00), half);
    hn::StoreU(narrow(hn::Or(half, sign)), U16(), to);
  }
#endif
};

}  // namespace kolo::base::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // KOLO_BASE_SIMD_LANES_INL_HPP
