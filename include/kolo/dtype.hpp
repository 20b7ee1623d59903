#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "kolo/check_macros.hpp"

#pragma GCC visibility push(default)
namespace kolo {

/// Element types of all collectives. The values are part of the control protocol: append only.
enum class DType : std::uint8_t {
  UInt8,
  Int8,
  Int16,
  Int32,
  Int64,
  Float16,
  BFloat16,
  Float32,
  Float64,
  Bool,
  Complex64,   ///< two Float32: the real part, then the imaginary one
  Complex128,  ///< two Float64
};

inline constexpr int kDTypeCount = 12;

/// @return bytes of one element
constexpr std::size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::UInt8:
    case DType::Int8:
    case DType::Bool: return 1;
    case DType::Int16:
    case DType::Float16:
    case DType::BFloat16: return 2;
    case DType::Int32:
    case DType::Float32: return 4;
    case DType::Int64:
    case DType::Float64:
    case DType::Complex64: return 8;
    case DType::Complex128: return 16;
  }
  return 0;
}

/// @return true for the real floating types
constexpr bool is_floating(DType dtype) {
  return dtype == DType::Float16 || dtype == DType::BFloat16 || dtype == DType::Float32 ||
         dtype == DType::Float64;
}

/// @return true for the 16-bit floating types, whose partial sums overflow or lose precision easily
constexpr bool is_half(DType dtype) { return dtype == DType::Float16 || dtype == DType::BFloat16; }

constexpr bool is_complex(DType dtype) {
  return dtype == DType::Complex64 || dtype == DType::Complex128;
}

/// @return true for integers, not for Bool
constexpr bool is_integer(DType dtype) {
  return !is_floating(dtype) && !is_complex(dtype) && dtype != DType::Bool;
}

/// @return the type of a complex number's real and imaginary part; any other type unchanged
constexpr DType real_type(DType dtype) {
  if (dtype == DType::Complex64) return DType::Float32;
  return dtype == DType::Complex128 ? DType::Float64 : dtype;
}

/// @return how many numbers of real_type() an element consists of: 2 for complex types, otherwise 1
constexpr std::size_t parts_of(DType dtype) { return is_complex(dtype) ? 2 : 1; }

/// @return PyTorch's name, as in "float32"
std::string_view name_of(DType dtype);

}  // namespace kolo
#pragma GCC visibility pop
