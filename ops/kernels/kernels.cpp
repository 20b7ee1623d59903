#include "ops/kernels/kernels.hpp"

#include <algorithm>
#include <array>
#include <complex>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>

#include "base/scale_integer.hpp"
#include "kolo/error.hpp"
#include "ops/kernels/vector_kernels.hpp"

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
    case ReduceOp::BitAnd: return fill<T>(values, count, static_cast<T>(-1));
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
    case DType::Bool: {
      const bool is_and = reduction.op == ReduceOp::Min || reduction.op == ReduceOp::BitAnd;
      return fill(values, count, std::uint8_t{is_and});
    }
  }
}

}  // namespace kolo::ops

namespace kolo::ops {
namespace {

/// a op b; sums and products wrap around, as unsigned ones do.
template <class T, ReduceOp kOp>
T apply(T a, T b) {
  if constexpr (kOp == ReduceOp::Min) return std::min(a, b);
  if constexpr (kOp == ReduceOp::Max) return std::max(a, b);
  const auto x = static_cast<std::uint64_t>(a);
  const auto y = static_cast<std::uint64_t>(b);
  switch (kOp) {
    case ReduceOp::Sum: return static_cast<T>(x + y);
    case ReduceOp::BitAnd: return static_cast<T>(x & y);
    case ReduceOp::BitOr: return static_cast<T>(x | y);
    case ReduceOp::BitXor: return static_cast<T>(x ^ y);
    default: return static_cast<T>(x * y);
  }
}

/// Integers with scales, which gain little from vectors, and products of bytes.
template <class T, ReduceOp kOp>
void combine_scalars(const CombineCall& call) {
  const auto input = [&](std::size_t k) { return reinterpret_cast<const T*>(call.inputs[k]); };
  for (std::size_t i = call.begin; i < call.end; ++i) {
    T result = base::scale_integer(input(0)[i], call.prescale);
    for (std::size_t k = 1; k < call.inputs.size(); ++k) {
      result = apply<T, kOp>(result, base::scale_integer(input(k)[i], call.prescale));
    }
    result = base::scale_integer(result, call.postscale);
    for (std::byte* output : call.outputs) reinterpret_cast<T*>(output)[i] = result;
  }
}

/// Products of complex numbers with parts of type T. Without vectors, which not all targets can
/// shuffle.
template <class T>
void multiply_complex(const CombineCall& call) {
  const auto prescale = static_cast<T>(call.prescale);
  const auto postscale = static_cast<T>(call.postscale);
  for (std::size_t i = 2 * call.begin; i < 2 * call.end; i += 2) {
    const auto part = [&](std::size_t k, std::size_t which) {
      return reinterpret_cast<const T*>(call.inputs[k])[i + which] * prescale;
    };
    T real = part(0, 0);
    T imaginary = part(0, 1);
    for (std::size_t k = 1; k < call.inputs.size(); ++k) {
      const T before = real;
      real = before * part(k, 0) - imaginary * part(k, 1);
      imaginary = before * part(k, 1) + imaginary * part(k, 0);
    }
    for (std::byte* output : call.outputs) {
      reinterpret_cast<T*>(output)[i] = real * postscale;
      reinterpret_cast<T*>(output)[i + 1] = imaginary * postscale;
    }
  }
}

template <class T>
CombineFunction find_scalar_op(ReduceOp op) {
  switch (op) {
    case ReduceOp::Sum: return combine_scalars<T, ReduceOp::Sum>;
    case ReduceOp::Min: return combine_scalars<T, ReduceOp::Min>;
    case ReduceOp::Max: return combine_scalars<T, ReduceOp::Max>;
    case ReduceOp::Product: return combine_scalars<T, ReduceOp::Product>;
    case ReduceOp::BitAnd: return combine_scalars<T, ReduceOp::BitAnd>;
    case ReduceOp::BitOr: return combine_scalars<T, ReduceOp::BitOr>;
    case ReduceOp::BitXor: return combine_scalars<T, ReduceOp::BitXor>;
    case ReduceOp::Average:
    case ReduceOp::Adasum:
    case ReduceOp::Custom: break;
  }
  return nullptr;
}

CombineFunction find_scalar_kernel(DType dtype, ReduceOp op) {
  switch (dtype) {
    case DType::UInt8: return find_scalar_op<std::uint8_t>(op);
    case DType::Int8: return find_scalar_op<std::int8_t>(op);
    case DType::Int16: return find_scalar_op<std::int16_t>(op);
    case DType::Int32: return find_scalar_op<std::int32_t>(op);
    case DType::Int64: return find_scalar_op<std::int64_t>(op);
    default: return nullptr;
  }
}

CombineFunction find_kernel(DType dtype, const Reduction& reduction) {
  if (is_complex(dtype) && reduction.op == ReduceOp::Product) {
    return dtype == DType::Complex64 ? multiply_complex<float> : multiply_complex<double>;
  }
  const bool is_scaled = reduction.prescale != 1.0 || reduction.postscale != 1.0;
  const bool is_byte_product =
      is_integer(dtype) && size_of(dtype) == 1 && reduction.op == ReduceOp::Product;
  if ((is_integer(dtype) && is_scaled) || is_byte_product)
    return find_scalar_kernel(dtype, reduction.op);
  return find_vector_kernel(dtype, reduction.op);
}

/// Combines piece by piece in a scratch buffer, since an output may be any of the inputs.
void combine_custom(DType dtype, const CustomReduction& custom,
                    std::span<const std::byte* const> inputs, std::span<std::byte* const> outputs,
                    Range range) {
  constexpr std::size_t kPieceBytes = 4096;
  alignas(64) std::array<std::byte, kPieceBytes> piece;
  const std::size_t end = (range.begin + range.length) * size_of(dtype);
  for (std::size_t begin = range.begin * size_of(dtype); begin < end; begin += kPieceBytes) {
    const std::size_t length = std::min(kPieceBytes, end - begin);
    std::memcpy(piece.data(), inputs[0] + begin, length);
    for (const std::byte* input : inputs.subspan(1)) {
      custom.combine(dtype, input + begin, piece.data(), length / size_of(dtype));
    }
    for (std::byte* output : outputs) std::memcpy(output + begin, piece.data(), length);
  }
}

}  // namespace

bool is_combinable(DType dtype, ReduceOp op) {
  if (op == ReduceOp::Custom) return true;
  const bool is_order = op == ReduceOp::Min || op == ReduceOp::Max;
  if (is_bitwise(op)) return is_integer(dtype) || dtype == DType::Bool;
  if (dtype == DType::Bool) return is_order;
  if (is_complex(dtype) && is_order) return false;
  return op != ReduceOp::Average && op != ReduceOp::Adasum;
}

void divide(std::span<std::int64_t> values, std::int64_t divisor) {
  for (std::int64_t& value : values) value /= divisor;
}

void combine(DType dtype, const Reduction& reduction, std::span<const std::byte* const> inputs,
             std::span<std::byte* const> outputs, Range range) {
  if (!is_combinable(dtype, reduction.op)) {
    throw InvalidArgument("combine: " + std::string(name_of(reduction.op)) + " of " +
                          std::string(name_of(dtype)) + " is not defined");
  }
  if (inputs.empty()) throw InvalidArgument("combine: needs at least one input, got none");
  if (reduction.op == ReduceOp::Custom) {
    combine_custom(dtype, *reduction.custom, inputs, outputs, range);
    return;
  }
  find_kernel(dtype, reduction)({inputs, outputs, range.begin, range.begin + range.length,
                                 reduction.prescale, reduction.postscale});
}

}  // namespace kolo::ops

void kolo::combine(DType dtype, const Reduction& reduction,
                   std::span<const std::byte* const> inputs, std::span<std::byte* const> outputs,
                   std::size_t count) {
  ops::combine(dtype, reduction, inputs, outputs, ops::Range{0, count});
}
