#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "kolo/dtype.hpp"

namespace kolo {

#pragma GCC visibility push(default)
/// Kinds of memory. The values are part of the control protocol: append only.
enum class DeviceKind : std::uint8_t { Cpu, Cuda };

constexpr std::string_view name_of(DeviceKind kind) {
  return kind == DeviceKind::Cpu ? "cpu" : "cuda";
}

struct Device {
  DeviceKind kind = DeviceKind::Cpu;
  int index = 0;  ///< always 0 for the CPU

  bool operator==(const Device&) const = default;
};
#pragma GCC visibility pop

#pragma GCC visibility push(default)
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
#pragma GCC visibility pop

}  // namespace kolo
