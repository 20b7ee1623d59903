#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kolo/error.hpp"
#include "torch/checkpoint/tensor_slice.hpp"

/// Checks before bytes of a file are copied to memory: the program's memory decides the range, and
/// the file is compared with it.
namespace kolo::tensors {

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

}  // namespace kolo::tensors
