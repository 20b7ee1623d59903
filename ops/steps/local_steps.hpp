#pragma once

#include <cstddef>

#include "kolo/algorithm.hpp"

namespace kolo::ops {

/// Steps of algorithms in local memory, a segment of `call` at a time.

/// Writes `count` elements from `from`, scaled, to `to`, which may be the same memory.
Task scale_elements(CollectiveCall call, double factor, const std::byte* from, std::byte* to,
                    std::size_t count);

/// Copies `count` elements unless `from` is `to`.
Task copy_elements(CollectiveCall call, const std::byte* from, std::byte* to, std::size_t count);

}  // namespace kolo::ops
