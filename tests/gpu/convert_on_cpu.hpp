#pragma once

#include <cstdint>
#include <span>

#include "comm/gpu/gpu.hpp"

namespace kolo::test {

/// Does on the CPU, one thread of the kernels after another, what a GPU with as many blocks would
/// do.
void convert_on_cpu(std::span<const comm::DeviceRun> runs, comm::DeviceConversion conversion,
                    std::uint64_t blocks);

}  // namespace kolo::test
