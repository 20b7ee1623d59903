#pragma once

#include "comm/gpu/gpu.hpp"

namespace kolo::ops {

/// Throws InvalidArgument for a type that is not floating, and for vectors that are not aligned to
/// their elements.
void check_vectors(const comm::DeviceVectors& vectors);

}  // namespace kolo::ops
