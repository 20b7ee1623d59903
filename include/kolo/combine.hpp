#pragma once

#include <cstddef>
#include <span>

#include "kolo/dtype.hpp"
#include "kolo/reduction.hpp"

namespace kolo {

/// The arithmetic of a reduction, for algorithms: in one pass over any number of inputs, in order,
///   out[i] = postscale * ((prescale * in0[i]) op (prescale * in1[i]) op …)
/// written to every output. An output may be the same memory as an input; otherwise the ranges do
/// not overlap. Uses the widest vectors of the machine, allocates nothing, needs the alignment of
/// one element only, and gives an element the same bits wherever it lies in a buffer.
///
/// 16-bit floats are computed in float32 and rounded once, to nearest, ties to even. Min and Max
/// give NaN where any input is NaN. Integers wrap around; their scales multiply in float64 and
/// truncate toward zero. Scales of Bool are ignored, and those of Custom must be 1.
/// Throws InvalidArgument for Average and Adasum, for what is not defined for Bool, which knows
/// Min, Max and Custom only, and where there is no input.
void combine(DType dtype, const Reduction& reduction, std::span<const std::byte* const> inputs,
             std::span<std::byte* const> outputs, std::size_t count);

}  // namespace kolo
