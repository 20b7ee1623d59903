#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kolo/device.hpp"
#include "kolo/dtype.hpp"

#pragma GCC visibility push(default)
namespace kolo {

/// A non-owning view of a tensor in contiguous, row-major memory.
struct TensorView {
  void* data = nullptr;
  DType dtype = DType::Float32;
  std::vector<std::int64_t> shape;  ///< empty for a scalar
  Device device{};

  std::size_t count() const {
    std::size_t count = 1;
    for (const std::int64_t extent : shape) count *= static_cast<std::size_t>(extent);
    return count;
  }
  std::size_t size_bytes() const { return count() * size_of(dtype); }
};

}  // namespace kolo
#pragma GCC visibility pop
