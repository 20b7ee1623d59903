#pragma once

#include <cstddef>
#include <span>

#include "comm/gpu/gpu.hpp"
#include "runtime/data/reduction_items.hpp"
#include "runtime/device/device_path.hpp"

namespace kolo::runtime {

/// Elements of all items.
std::size_t count_of(std::span<const ReductionItem> items);

/// Converts the inputs of all items into `buffer`, one after another.
void pack(const DevicePath& path, std::span<const ReductionItem> items,
          comm::DeviceConversion conversion, std::byte* buffer);
/// Converts `buffer` into the outputs of all items.
void unpack(const DevicePath& path, const std::byte* buffer, comm::DeviceConversion conversion,
            std::span<const ReductionItem> items);

}  // namespace kolo::runtime
