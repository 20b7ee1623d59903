#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kolo/combine.hpp"
#include "kolo/dtype.hpp"
#include "kolo/reduction.hpp"
#include "ops/kernels/pieces.hpp"

namespace kolo::ops {

/// Local arithmetic of the collectives, with the widest vectors of the machine. It allocates
/// nothing and needs the alignment of one element; the bits of an element do not depend on its
/// place.

/// Whether `op` can combine elements of `dtype`: all but Average and Adasum; for Bool only Min, Max
/// and Custom; for complex types not Min and Max.
bool is_combinable(DType dtype, ReduceOp op);

using kolo::combine;

/// Of these elements of all buffers.
void combine(DType dtype, const Reduction& reduction, std::span<const std::byte* const> inputs,
             std::span<std::byte* const> outputs, Range range);

/// The same reduction with other scales, for algorithms that apply each at a step of its own.
inline Reduction with_scales(Reduction reduction, double prescale, double postscale) {
  reduction.prescale = prescale;
  reduction.postscale = postscale;
  return reduction;
}

/// values[i] /= divisor, truncated toward zero. Exact, unlike a multiplication by 1/divisor.
void divide(std::span<std::int64_t> values, std::int64_t divisor);

}  // namespace kolo::ops
