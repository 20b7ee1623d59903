#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kolo/dtype.hpp"
#include "kolo/error.hpp"

namespace kolo::train {

/// A range of elements of a tensor, which one rank writes.
struct TensorSlice {
  std::string name;  ///< of the whole tensor
  DType dtype = DType::Float32;
  std::vector<std::int64_t> shape;  ///< of the whole tensor
  std::int64_t begin = 0;           ///< first element in the whole tensor, in row-major order
  std::int64_t count = 0;
  const void* data = nullptr;
  /// Instead of `data`, for elements that are not in CPU memory: copies their bytes, from `offset`
  /// on, to `place`.
  std::function<void(std::size_t offset, std::span<std::byte> place)> copy_to{};
};

/// The number of elements of this shape; nothing if an extent is negative or the number of bytes
/// would overflow.
inline std::optional<std::int64_t> elements_of(const std::vector<std::int64_t>& shape) {
  std::int64_t count = 1;
  for (const std::int64_t extent : shape) {
    if (extent < 0 || __builtin_mul_overflow(count, extent, &count)) return std::nullopt;
  }
  constexpr std::int64_t kLargestElement = 16;
  if (count > std::numeric_limits<std::int64_t>::max() / kLargestElement) return std::nullopt;
  return count;
}

/// Bytes of `count` elements.
inline std::int64_t bytes_of(DType dtype, std::int64_t count) {
  return static_cast<std::int64_t>(size_of(dtype)) * count;
}

/// "float32 [3, 4]".
inline std::string text_of(DType dtype, const std::vector<std::int64_t>& shape) {
  std::string text = std::string(name_of(dtype)) + " [";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    text += (i > 0 ? ", " : "") + std::to_string(shape[i]);
  }
  return text + "]";
}

// Checks before bytes of a file are copied to memory: the program's memory decides the range, and
// the file is compared with it.

/// The number of elements that fit into `room`. Throws InvalidArgument if its size is no multiple.
inline std::int64_t elements_in(std::span<const std::byte> room, DType dtype) {
  if (room.size() % size_of(dtype) == 0) {
    return static_cast<std::int64_t>(room.size() / size_of(dtype));
  }
  throw InvalidArgument("there is room for " + std::to_string(room.size()) +
                        " bytes, which are no whole number of " + std::string(name_of(dtype)));
}

/// Throws InvalidArgument unless a tensor of type `saved` and this shape in a file has elements of
/// type `dtype` from `begin` to `begin + count`.
inline void require_range(DType saved, const std::vector<std::int64_t>& shape, DType dtype,
                          std::int64_t begin, std::int64_t count) {
  if (saved != dtype) {
    throw InvalidArgument("is " + std::string(name_of(saved)) + ", but " +
                          std::string(name_of(dtype)) + " was asked for");
  }
  const std::int64_t elements = elements_of(shape).value();
  if (begin >= 0 && count >= 0 && begin <= elements && count <= elements - begin) return;
  throw InvalidArgument("has " + std::to_string(elements) + " elements, but " +
                        std::to_string(count) + " from " + std::to_string(begin) +
                        " on were asked for");
}

}  // namespace kolo::train
