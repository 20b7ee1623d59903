#pragma once

#include "comm/gpu.hpp"

namespace kolo::test {

/// The arithmetic of comm::Gpu on plain memory.

/// Throws InvalidArgument for what comm::Gpu does not convert.
void check_conversion(const comm::DeviceConversion& conversion);
void convert_run(const comm::DeviceRun& run, const comm::DeviceConversion& conversion);

}  // namespace kolo::test
