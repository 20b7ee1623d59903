#pragma once

#include "comm/gpu/convert_table.hpp"
#include "comm/gpu/gpu.hpp"

namespace kolo::comm {

/// Convert, or fill, the runs of `table`: one launch on `stream`, which belongs to the calling
/// thread's current device. The conversion has passed check_conversion, and the table is not empty.
/// Throw BackendError where the launch fails.
void launch_convert(const ConvertTable& table, DeviceConversion conversion, DeviceStream stream);
/// Writes `value`, an element of `size` bytes, to every place of `table.to`.
void launch_fill(const ConvertTable& table, std::uint64_t value, std::size_t size,
                 DeviceStream stream);

}  // namespace kolo::comm
