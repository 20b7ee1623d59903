#pragma once

#include <cstddef>

#include "kolo/dtype.hpp"

namespace kolo::base {

/// out[i] = in[i] * scale as type `to`, for `count` elements. The ranges may be equal if both
/// types have the same size; otherwise they must not overlap. Buffers are aligned for their type.
///
/// Floating types are multiplied in float32 (float64 to float64: in float64) and rounded once, to
/// nearest, ties to even. Overflow becomes infinity, NaN stays NaN. float64 becomes a 16-bit type
/// by way of float32, as in PyTorch. Integers are multiplied in float64 and truncated toward zero,
/// exactly if `scale` is 1; values beyond Int64 saturate, and narrowing keeps the low bits. Throws
/// InvalidArgument for pairs that are neither floating types nor an integer type and Int64.
void convert(DType from, const void* in, DType to, void* out, std::size_t count,
             double scale = 1.0);

}  // namespace kolo::base
