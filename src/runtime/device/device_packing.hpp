#pragma once

#include <cstddef>
#include <span>

#include "comm/gpu/gpu.hpp"
#include "runtime/data/reduction_items.hpp"
#include "runtime/device/device_path.hpp"

namespace kolo::runtime {

/// Elements of all items.
std::size_t count_of(std::span<const ReductionItem> items);

/// Converts what all items give, one after another into `buffer`.
void pack(const DevicePath& path, std::span<const ReductionItem> items,
          comm::DeviceConversion conversion, std::byte* buffer);
/// And from there to where their results belong.
void unpack(const DevicePath& path, const std::byte* buffer, comm::DeviceConversion conversion,
            std::span<const ReductionItem> items);

}  // namespace kolo::runtime
