#pragma once

#include <cstddef>
#include <span>

namespace kolo::compression {

// A payload of `kept` elements: their indices, 2 bytes each, then their values; or all values, if
// it is_dense().

/// Writes the `kept` elements of largest magnitude, the first ones among equals.
void write_largest(std::span<const float> values, std::size_t kept, std::byte* payload);
/// Adds a payload of `kept` elements to `values`.
void add_sparse(const std::byte* payload, std::size_t kept, std::span<float> values);

}  // namespace kolo::compression
