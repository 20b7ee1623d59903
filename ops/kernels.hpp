#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kolo/dtype.hpp"
#include "kolo/reduction.hpp"

namespace kolo::ops {

/// Local arithmetic of the collectives: plain loops over memory that use the widest vectors of the
/// machine they run on. They allocate nothing, need the alignment of one element only, and give an
/// element the same bits wherever it lies in a buffer.

/// True where `dtype` can be combined by `op`: everything but Average, and for Bool Min and Max
/// only.
bool is_combinable(DType dtype, ReduceOp op);

/// In one pass over any number of inputs, in their order:
///   out[i] = postscale * ((prescale * in0[i]) op (prescale * in1[i]) op …)
/// written to every output. An output may be the same memory as an input; otherwise the ranges do
/// not overlap.
///
/// 16-bit floats are computed in float32 and rounded once, to nearest, ties to even. Min and Max
/// give NaN where any input is NaN. Integers wrap around; their scales multiply in float64 and
/// truncate toward zero. Scales of Bool are ignored.
/// Throws InvalidArgument where `is_combinable` is false or there is no input.
void combine(DType dtype, const Reduction& reduction, std::span<const std::byte* const> inputs,
             std::span<std::byte* const> outputs, std::size_t count);

/// values[i] /= divisor, truncated toward zero. Exact, unlike a multiplication by 1/divisor.
void divide(std::span<std::int64_t> values, std::int64_t divisor);

}  // namespace kolo::ops
