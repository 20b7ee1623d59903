#include "comm/gpu/gpu.hpp"

#include <bit>
#include <string>

#include "kolo/error.hpp"

namespace kolo::comm {

void check_vectors(std::string_view what, const DeviceVectors& vectors) {
  const std::string text =
      "GPU " + std::string(what) + " of " + std::string(name_of(vectors.dtype)) + ": expected ";
  if (!is_floating(vectors.dtype)) throw InvalidArgument(text + "a floating type");
  if (std::bit_cast<std::uintptr_t>(vectors.first) % size_of(vectors.dtype) != 0) {
    throw InvalidArgument(text + "addresses of elements, got vectors that lie between them");
  }
}

}  // namespace kolo::comm
