#pragma once

#include <cstdint>

#include "comm/gpu/cuda.hpp"
#include "comm/gpu/gpu.hpp"

namespace kolo::ops {

/// Launches a kernel on `stream`, which belongs to the calling thread's current device.
template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), dim3 blocks, std::uint32_t threads,
            comm::DeviceStream stream, const Arguments&... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = blocks;
  config.blockDim = dim3(threads);
  config.stream = stream;
  KOLO_CUDA_TRY(cudaLaunchKernelEx(&config, kernel, arguments...));
}

}  // namespace kolo::ops
