#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kolo/algorithm.hpp"
#include "kolo/dtype.hpp"
#include "kolo/reduction.hpp"
#include "ops/kernels/pieces.hpp"

namespace kolo::ops {

/// Fills `values` with the identity of `reduction`: 0 for Sum, Average, Adasum, BitOr and BitXor, 1
/// for Product, all bits for BitAnd, the highest value for Min, the lowest for Max; infinities for
/// floats, true and false for bool.
void fill_identity(DType dtype, const Reduction& reduction, std::byte* values, std::size_t count);

/// Local arithmetic of the collectives, with the widest vectors of the machine. It does not
/// allocate, and requires only the alignment of one element; an element's bits do not depend on its
/// position.

/// Whether `op` can combine elements of `dtype`: all but Average and Adasum; bits only of integers
/// and Bool; for Bool otherwise only Min, Max and Custom; for complex types not Min and Max.
bool is_combinable(DType dtype, ReduceOp op);

using kolo::combine;

/// Combines only the elements of `range` in all buffers.
void combine(DType dtype, const Reduction& reduction, std::span<const std::byte* const> inputs,
             std::span<std::byte* const> outputs, Range range);

/// The reduction with other scales, for algorithms that apply the two in different steps.
inline Reduction with_scales(Reduction reduction, double prescale, double postscale) {
  reduction.prescale = prescale;
  reduction.postscale = postscale;
  return reduction;
}

/// values[i] /= divisor, truncated toward zero. Exact, unlike a multiplication by 1/divisor.
void divide(std::span<std::int64_t> values, std::int64_t divisor);

}  // namespace kolo::ops
