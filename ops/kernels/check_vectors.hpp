#pragma once

#include <string_view>

#include "comm/gpu/gpu.hpp"

namespace kolo::ops {

/// Throws InvalidArgument for a type that is not floating, and for vectors that are not aligned to
/// their elements.
/// @param what the operation, for the error text
void check_vectors(std::string_view what, const comm::DeviceVectors& vectors);

}  // namespace kolo::ops
