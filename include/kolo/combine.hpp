#pragma once

#include <cstddef>
#include <span>

#include "kolo/dtype.hpp"
#include "kolo/reduction.hpp"

#pragma GCC visibility push(default)
namespace kolo {

/// Combines inputs element by element, in their order and in one pass, and writes all outputs:
///
///     out[i] = postscale * ((prescale * in0[i]) op (prescale * in1[i]) op …)
///
/// 16-bit floats are computed in float32 and rounded once, to nearest, ties to even. Min and Max
/// return NaN if any input is NaN. Integers wrap around; their scales multiply in float64 and
/// truncate toward zero. Scales are ignored for Bool and must be 1 for Custom. The bits of an
/// element do not depend on its place in a buffer. Allocates nothing.
///
/// @param inputs at least one; aligned to one element
/// @param outputs each is an input's memory or overlaps none
/// @param count elements of each
/// @throws InvalidArgument for Average and Adasum, for Bool with anything but Min, Max and Custom,
///         for Min and Max of complex types, and without inputs
void combine(DType dtype, const Reduction& reduction, std::span<const std::byte* const> inputs,
             std::span<std::byte* const> outputs, std::size_t count);

}  // namespace kolo
#pragma GCC visibility pop
