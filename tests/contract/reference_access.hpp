#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "contract/reference.hpp"

namespace kolo::test {

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
    switch (op) {
      case ReduceOp::Sum: return static_cast<T>(x + y);
      case ReduceOp::BitAnd: return static_cast<T>(x & y);
      case ReduceOp::BitOr: return static_cast<T>(x | y);
      case ReduceOp::BitXor: return static_cast<T>(x ^ y);
      default: return static_cast<T>(x * y);
    }
  }
}

}  // namespace kolo::test
