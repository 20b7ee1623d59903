#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

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
};

inline constexpr int kDTypeCount = 10;

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
    case DType::Float64: return 8;
  }
  return 0;
}

constexpr bool is_floating(DType dtype) {
  return dtype == DType::Float16 || dtype == DType::BFloat16 || dtype == DType::Float32 ||
         dtype == DType::Float64;
}

/// @return true for the 16-bit floating types, whose partial sums overflow or lose precision easily
constexpr bool is_half(DType dtype) { return dtype == DType::Float16 || dtype == DType::BFloat16; }

/// @return PyTorch's name, as in "float32"
std::string_view name_of(DType dtype);

}  // namespace kolo
#pragma GCC visibility pop
