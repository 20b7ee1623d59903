#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace kolo {

/// No memory of a process is longer, so sizes up to here, of all tensors and ranks, can be added,
/// rounded up and converted without an overflow.
inline constexpr std::size_t kLongestMemory = std::size_t{1} << 47;

/// The size of a tensor, none if it is longer than any memory. The rows of one without elements may
/// be longer, but must have a size.
constexpr std::optional<std::size_t> tensor_bytes(std::span<const std::int64_t> shape,
                                                  std::size_t element_bytes) {
  bool is_empty = false;
  for (const std::int64_t extent : shape) is_empty |= extent == 0;
  const std::size_t longest = is_empty ? std::size_t{1} << 62 : kLongestMemory;
  std::size_t bytes = element_bytes;
  for (const std::int64_t extent : shape) {
    if (extent == 0) continue;
    if (static_cast<std::size_t>(extent) > longest / bytes) return std::nullopt;
    bytes *= static_cast<std::size_t>(extent);
  }
  return is_empty ? 0 : bytes;
}

}  // namespace kolo
