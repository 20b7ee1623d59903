#pragma once

#include <cstddef>

#include "kolo/dtype.hpp"
#include "kolo/reduction.hpp"

namespace kolo::ops {

/// Fills `values` with the identity of `reduction`: 0 for Sum, Average and Adasum, 1 for Product,
/// the highest value for Min, the lowest for Max; infinities for floats, true and false for bool.
void fill_identity(DType dtype, const Reduction& reduction, std::byte* values, std::size_t count);

}  // namespace kolo::ops
