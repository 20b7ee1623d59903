#pragma once

#include <cstddef>

#include "kolo/dtype.hpp"

namespace kolo::base {

/// True where `convert` knows the way: among the floating types, and from any integer type to Int64
/// and back.
bool is_convertible(DType from, DType to);

/// out[i] = in[i] * scale as type `to`, for `count` elements. The ranges may be the same where the
/// types have one size; otherwise they do not overlap. Buffers need the alignment of an element.
///
/// Floating: multiplied in float32 (in float64 between float64 and itself), rounded once to
/// nearest, ties to even; too large becomes infinity; NaN stays NaN; float64 goes to 16 bits by way
/// of float32, as in PyTorch. Integers: multiplied in float64 and truncated toward zero, exact when
/// `scale` is 1; what does not fit Int64 saturates, and narrowing keeps the low bits.
/// Throws InvalidArgument where `is_convertible` is false.
void convert(DType from, const void* in, DType to, void* out, std::size_t count,
             double scale = 1.0);

}  // namespace kolo::base
