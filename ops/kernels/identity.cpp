#include "ops/kernels/identity.hpp"

#include <complex>
#include <cstdint>
#include <cstring>
#include <limits>

namespace kolo::ops {
namespace {

template <class T>
void fill(std::byte* values, std::size_t count, T value) {
  for (std::size_t i = 0; i < count; ++i) std::memcpy(values + i * sizeof(T), &value, sizeof(T));
}

template <class T>
void fill_numbers(ReduceOp op, std::byte* values, std::size_t count) {
  using Limits = std::numeric_limits<T>;
  constexpr bool kIsFloat = Limits::has_infinity;
  switch (op) {
    case ReduceOp::Min:
      return fill<T>(values, count, kIsFloat ? Limits::infinity() : Limits::max());
    case ReduceOp::Max:
      return fill<T>(values, count, kIsFloat ? -Limits::infinity() : Limits::lowest());
    case ReduceOp::Product: return fill<T>(values, count, T{1});
    default: return fill<T>(values, count, T{0});
  }
}

/// 16-bit floats by their bits: those of 1 and of infinity.
void fill_halves(ReduceOp op, std::uint16_t one, std::uint16_t infinity, std::byte* values,
                 std::size_t count) {
  constexpr std::uint16_t kSign = 0x8000;
  switch (op) {
    case ReduceOp::Min: return fill(values, count, infinity);
    case ReduceOp::Max: return fill(values, count, static_cast<std::uint16_t>(infinity | kSign));
    case ReduceOp::Product: return fill(values, count, one);
    default: return fill(values, count, std::uint16_t{0});
  }
}

}  // namespace

void fill_identity(DType dtype, const Reduction& reduction, std::byte* values, std::size_t count) {
  if (reduction.op == ReduceOp::Custom) {
    reduction.custom->fill_identity(dtype, values, count);
    return;
  }
  switch (dtype) {
    case DType::UInt8: return fill_numbers<std::uint8_t>(reduction.op, values, count);
    case DType::Int8: return fill_numbers<std::int8_t>(reduction.op, values, count);
    case DType::Int16: return fill_numbers<std::int16_t>(reduction.op, values, count);
    case DType::Int32: return fill_numbers<std::int32_t>(reduction.op, values, count);
    case DType::Int64: return fill_numbers<std::int64_t>(reduction.op, values, count);
    case DType::Float16: return fill_halves(reduction.op, 0x3c00, 0x7c00, values, count);
    case DType::BFloat16: return fill_halves(reduction.op, 0x3f80, 0x7f80, values, count);
    case DType::Float32: return fill_numbers<float>(reduction.op, values, count);
    case DType::Float64: return fill_numbers<double>(reduction.op, values, count);
    case DType::Complex64: return fill_numbers<std::complex<float>>(reduction.op, values, count);
    case DType::Complex128: return fill_numbers<std::complex<double>>(reduction.op, values, count);
    case DType::Bool: return fill(values, count, std::uint8_t{reduction.op == ReduceOp::Min});
  }
}

}  // namespace kolo::ops
