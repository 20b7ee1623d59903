#pragma once

#include <cstddef>

#include "kolo/dtype.hpp"
#include "kolo/reduction.hpp"

namespace kolo::ops {

/// Fills `values` with the element that leaves every other as it is: 0 for Sum, Average and Adasum,
/// 1 for Product, the highest of the type for Min, the lowest for Max; infinities for floats, true
/// and false for bool.
void fill_identity(DType dtype, const Reduction& reduction, std::byte* values, std::size_t count);

}  // namespace kolo::ops
