#pragma once

#include <array>
#include <cstddef>

#include "kolo/dtype.hpp"

namespace kolo::comm {

/// One element of any type except the complex ones, in the first bytes.
using Scalar = std::array<std::byte, 8>;

/// `value` as an element of `dtype`, rounded as base::convert does; integers are truncated toward
/// zero, and a Bool is true unless `value` is 0.
Scalar scalar_of(DType dtype, double value);

}  // namespace kolo::comm
