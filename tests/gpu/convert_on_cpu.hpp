#pragma once

#include <cstdint>
#include <span>

#include "comm/gpu/gpu.hpp"

namespace kolo::test {

/// Runs the kernels on the CPU, one GPU thread after another, like a GPU with this many blocks.
void convert_on_cpu(std::span<const comm::DeviceRun> runs, comm::DeviceConversion conversion,
                    std::uint64_t blocks);

}  // namespace kolo::test
