#pragma once

#include <array>
#include <cstddef>

#include "kolo/dtype.hpp"

namespace kolo::comm {

/// One element of any type, in the first bytes.
using Scalar = std::array<std::byte, 8>;

/// `value` as an element of type `dtype`: rounded as base::convert does;
/// integers truncated toward zero; of Bool whatever is not 0 is 1.
Scalar scalar_of(DType dtype, double value);

}  // namespace kolo::comm
