#pragma once

// The reference for reductions: the same arithmetic, element by element, without the library's
// kernels.

#include <bit>
#include <cmath>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <type_traits>
#include <vector>

#include "kolo/dtype.hpp"
#include "kolo/reduction.hpp"

namespace kolo::test {

/// A 16-bit floating-point format, by its definition.
struct HalfFormat {
  int mantissa_bits;
  int exponent_bits;

  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  int smallest_exponent() const { return 1 - bias(); }

  double decode(std::uint16_t bits) const {
    const int mantissa = bits & ((1 << mantissa_bits) - 1);
    const int exponent = (bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
    const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
    if (exponent == (1 << exponent_bits) - 1) {
      return mantissa != 0 ? std::numeric_limits<double>::quiet_NaN()
                           : sign * std::numeric_limits<double>::infinity();
    }
    const int significand = exponent == 0 ? mantissa : mantissa + (1 << mantissa_bits);
    const int power = exponent == 0 ? smallest_exponent() : exponent - bias();
    return sign * std::ldexp(significand, power - mantissa_bits);
  }

  /// Rounds to nearest, ties to even.
  std::uint16_t encode(double value) const {
    const unsigned sign = std::signbit(value) ? 0x8000u : 0u;
    const unsigned infinity = ((1u << exponent_bits) - 1u) << mantissa_bits;
    if (std::isnan(value)) return static_cast<std::uint16_t>(sign | infinity | 1u);
    const double magnitude = std::fabs(value);
    if (magnitude == 0) return static_cast<std::uint16_t>(sign);
    if (std::isinf(value)) return static_cast<std::uint16_t>(sign | infinity);
    const int power = std::max(std::ilogb(magnitude), smallest_exponent());
    const double units = std::nearbyint(std::ldexp(magnitude, mantissa_bits - power));
    // A significand that rounds up to the next power of two carries into the exponent by itself.
    const double bits = units + std::ldexp(power - smallest_exponent(), mantissa_bits);
    return static_cast<std::uint16_t>(sign | std::min(static_cast<unsigned>(bits), infinity));
  }
};

inline constexpr HalfFormat kFloat16Format{10, 5};
inline constexpr HalfFormat kBFloat16Format{7, 8};

/// Access to one element of any type in memory, as a value for computations.
template <class Stored, class Value, Value (*kLoad)(Stored), Stored (*kStore)(Value)>
struct Access {
  using Type = Value;
  static Value load(const std::byte* from) {
    Stored stored;
    std::memcpy(&stored, from, sizeof(Stored));
    return kLoad(stored);
  }
  static void store(Value value, std::byte* to) {
    const Stored stored = kStore(value);
    std::memcpy(to, &stored, sizeof(Stored));
  }
};

template <class T>
T identity_value(T value) {
  return value;
}
inline float load_float16(std::uint16_t bits) {
  return static_cast<float>(kFloat16Format.decode(bits));
}
inline std::uint16_t store_float16(float value) { return kFloat16Format.encode(value); }
inline float load_bfloat16(std::uint16_t bits) {
  return static_cast<float>(kBFloat16Format.decode(bits));
}
inline std::uint16_t store_bfloat16(float value) { return kBFloat16Format.encode(value); }

template <class T>
using Plain = Access<T, T, identity_value<T>, identity_value<T>>;

/// Calls `visit` with the Access of `dtype`, which must not be complex.
template <class Visit>
auto with_access(DType dtype, Visit visit) {
  switch (dtype) {
    case DType::Bool:
    case DType::UInt8: return visit(Plain<std::uint8_t>());
    case DType::Int8: return visit(Plain<std::int8_t>());
    case DType::Int16: return visit(Plain<std::int16_t>());
    case DType::Int32: return visit(Plain<std::int32_t>());
    case DType::Int64: return visit(Plain<std::int64_t>());
    case DType::Float16: return visit(Access<std::uint16_t, float, load_float16, store_float16>());
    case DType::BFloat16:
      return visit(Access<std::uint16_t, float, load_bfloat16, store_bfloat16>());
    case DType::Float32: return visit(Plain<float>());
    default: break;
  }
  return visit(Plain<double>());
}

template <class T>
T reference_scale(T value, double scale) {
  if (scale == 1.0) return value;
  if constexpr (std::is_floating_point_v<T>) {
    return value * static_cast<T>(scale);
  } else {
    const double scaled = std::trunc(static_cast<double>(value) * scale);
    if (scaled >= static_cast<double>(std::numeric_limits<T>::max())) {
      return std::numeric_limits<T>::max();
    }
    if (scaled <= static_cast<double>(std::numeric_limits<T>::min())) {
      return std::numeric_limits<T>::min();
    }
    return static_cast<T>(scaled);
  }
}

template <class T>
T reference_apply(ReduceOp op, T a, T b) {
  if (op == ReduceOp::Min) return a < b || a != a ? a : b;
  if (op == ReduceOp::Max) return a > b || a != a ? a : b;
  if constexpr (std::is_floating_point_v<T>) {
    return op == ReduceOp::Sum ? a + b : a * b;
  } else {
    const auto x = static_cast<std::uint64_t>(a);
    const auto y = static_cast<std::uint64_t>(b);
    return static_cast<T>(op == ReduceOp::Sum ? x + y : x * y);
  }
}

/// reference_combine for complex numbers whose parts are of type T.
template <class T>
std::vector<std::byte> combine_complex(const Reduction& reduction,
                                       const std::vector<std::vector<std::byte>>& inputs) {
  using Complex = std::complex<T>;
  std::vector<std::byte> output(inputs[0].size());
  for (std::size_t at = 0; at < output.size(); at += sizeof(Complex)) {
    const auto input = [&](std::size_t k) {
      Complex value;
      std::memcpy(&value, &inputs[k][at], sizeof(Complex));
      return value * static_cast<T>(reduction.prescale);
    };
    Complex a = input(0);
    for (std::size_t k = 1; k < inputs.size(); ++k) {
      const Complex b = input(k);
      // By the definition, since the standard library's product corrects NaN results.
      a = reduction.op == ReduceOp::Sum ? a + b
                                        : Complex(a.real() * b.real() - a.imag() * b.imag(),
                                                  a.real() * b.imag() + a.imag() * b.real());
    }
    a *= static_cast<T>(reduction.postscale);
    std::memcpy(&output[at], &a, sizeof(Complex));
  }
  return output;
}

/// Combines `inputs` elementwise, in their order.
inline std::vector<std::byte> reference_combine(DType dtype, const Reduction& reduction,
                                                const std::vector<std::vector<std::byte>>& inputs) {
  if (reduction.op == ReduceOp::Custom) {
    std::vector<std::byte> result = inputs[0];
    for (std::size_t k = 1; k < inputs.size(); ++k) {
      reduction.custom->combine(dtype, inputs[k].data(), result.data(),
                                result.size() / size_of(dtype));
    }
    return result;
  }
  if (dtype == DType::Complex64) return combine_complex<float>(reduction, inputs);
  if (dtype == DType::Complex128) return combine_complex<double>(reduction, inputs);
  return with_access(dtype, [&](auto access) {
    std::vector<std::byte> output(inputs[0].size());
    const double pre = dtype == DType::Bool ? 1.0 : reduction.prescale;
    const double post = dtype == DType::Bool ? 1.0 : reduction.postscale;
    for (std::size_t at = 0; at < output.size(); at += size_of(dtype)) {
      auto result = reference_scale(access.load(&inputs[0][at]), pre);
      for (std::size_t k = 1; k < inputs.size(); ++k) {
        result = reference_apply(reduction.op, result,
                                 reference_scale(access.load(&inputs[k][at]), pre));
      }
      access.store(reference_scale(result, post), &output[at]);
    }
    return output;
  });
}

/// Element `index` of a buffer as a number. A complex number counts as its real part if it has the
/// form that set_value() writes, else as NaN.
inline double value_at(DType dtype, const std::byte* buffer, std::size_t index) {
  if (is_complex(dtype)) {
    const double real = value_at(real_type(dtype), buffer, 2 * index);
    const double imaginary = value_at(real_type(dtype), buffer, 2 * index + 1);
    return imaginary == -2 * real ? real : std::numeric_limits<double>::quiet_NaN();
  }
  return with_access(dtype, [&](auto access) {
    return static_cast<double>(access.load(buffer + index * size_of(dtype)));
  });
}

/// Writes `value`, which must be exact in the type, as element `index`; for complex types
/// value * (1 - 2i), a form that sums and scaling preserve.
inline void set_value(DType dtype, std::byte* buffer, std::size_t index, double value) {
  if (is_complex(dtype)) {
    set_value(real_type(dtype), buffer, 2 * index, value);
    set_value(real_type(dtype), buffer, 2 * index + 1, -2 * value);
    return;
  }
  with_access(dtype, [&](auto access) {
    using T = typename decltype(access)::Type;
    access.store(static_cast<T>(value), buffer + index * size_of(dtype));
    return 0;
  });
}

/// The first element whose bits differ, with all NaN equal; `count` if there is none.
inline std::size_t first_difference(DType dtype, const std::byte* a, const std::byte* b,
                                    std::size_t count) {
  const DType part = real_type(dtype);
  for (std::size_t i = 0; i < count * parts_of(dtype); ++i) {
    if (std::memcmp(a + i * size_of(part), b + i * size_of(part), size_of(part)) == 0) continue;
    if (std::isnan(value_at(part, a, i)) && std::isnan(value_at(part, b, i))) continue;
    return i / parts_of(dtype);
  }
  return count;
}

inline constexpr DType kAllDTypes[] = {
    DType::UInt8,   DType::Int8,    DType::Int16,     DType::Int32,
    DType::Int64,   DType::Float16, DType::BFloat16,  DType::Float32,
    DType::Float64, DType::Bool,    DType::Complex64, DType::Complex128,
};
static_assert(std::size(kAllDTypes) == kDTypeCount);
/// Whether the type supports `op`, one of kAllOps.
inline bool is_defined(DType dtype, ReduceOp op) {
  const bool is_order = op == ReduceOp::Min || op == ReduceOp::Max;
  return dtype == DType::Bool ? is_order : !is_complex(dtype) || !is_order;
}
inline constexpr ReduceOp kAllOps[] = {ReduceOp::Sum, ReduceOp::Min, ReduceOp::Max,
                                       ReduceOp::Product};

}  // namespace kolo::test
