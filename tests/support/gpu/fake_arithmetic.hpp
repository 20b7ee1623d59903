#pragma once

#include "comm/gpu/gpu.hpp"

namespace kolo::test {

/// The arithmetic of comm::Gpu on plain memory.

/// Throws InvalidArgument for conversions that comm::Gpu does not support.
void check_conversion(const comm::DeviceConversion& conversion);
void convert_run(const comm::DeviceRun& run, const comm::DeviceConversion& conversion);

void add_up_vectors(const comm::DeviceVectors& vectors, const comm::DeviceFactors& factors,
                    std::byte* to);

}  // namespace kolo::test
