#pragma once

#include <cstdint>
#include <string_view>

#pragma GCC visibility push(default)
namespace kolo {

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

}  // namespace kolo
#pragma GCC visibility pop
