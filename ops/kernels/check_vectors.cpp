#include "ops/kernels/check_vectors.hpp"

#include <bit>
#include <cstdint>
#include <string>

#include "kolo/error.hpp"

namespace kolo::ops {

void check_vectors(const comm::DeviceVectors& vectors) {
  const std::string text = "GPU sum of " + std::string(name_of(vectors.dtype)) + ": expected ";
  if (!is_floating(vectors.dtype)) throw InvalidArgument(text + "a floating type");
  if (std::bit_cast<std::uintptr_t>(vectors.first) % size_of(vectors.dtype) != 0) {
    throw InvalidArgument(text + "addresses of elements, got vectors that lie between them");
  }
}

}  // namespace kolo::ops
