#pragma once

// The reference for reductions: the same arithmetic, element by element, without the library's
// kernels.

#include <cstddef>
#include <cstdint>
#include <iterator>
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

  double decode(std::uint16_t bits) const;
  /// Rounds to nearest, ties to even.
  std::uint16_t encode(double value) const;
};

inline constexpr HalfFormat kFloat16Format{10, 5};
inline constexpr HalfFormat kBFloat16Format{7, 8};

/// Combines `inputs` elementwise, in their order.
std::vector<std::byte> reference_combine(DType dtype, const Reduction& reduction,
                                         const std::vector<std::vector<std::byte>>& inputs);

/// Element `index` of a buffer as a number. A complex number counts as its real part if it has the
/// form that set_value() writes, else as NaN.
double value_at(DType dtype, const std::byte* buffer, std::size_t index);

/// Writes `value`, which must be exact in the type, as element `index`; for complex types
/// value * (1 - 2i), a form that sums and scaling preserve.
void set_value(DType dtype, std::byte* buffer, std::size_t index, double value);

/// The first element whose bits differ, with all NaN equal; `count` if there is none.
std::size_t first_difference(DType dtype, const std::byte* a, const std::byte* b,
                             std::size_t count);

inline constexpr DType kAllDTypes[] = {
    DType::UInt8,   DType::Int8,    DType::Int16,     DType::Int32,
    DType::Int64,   DType::Float16, DType::BFloat16,  DType::Float32,
    DType::Float64, DType::Bool,    DType::Complex64, DType::Complex128,
};
static_assert(std::size(kAllDTypes) == kDTypeCount);
/// Whether the type supports `op`, one of kAllOps.
inline bool is_defined(DType dtype, ReduceOp op) {
  if (is_bitwise(op)) return is_integer(dtype) || dtype == DType::Bool;
  const bool is_order = op == ReduceOp::Min || op == ReduceOp::Max;
  return dtype == DType::Bool ? is_order : !is_complex(dtype) || !is_order;
}
inline constexpr ReduceOp kAllOps[] = {ReduceOp::Sum,     ReduceOp::Min,    ReduceOp::Max,
                                       ReduceOp::Product, ReduceOp::BitAnd, ReduceOp::BitOr,
                                       ReduceOp::BitXor};

}  // namespace kolo::test
