#include <cstdint>

#include "comm/gpu/convert_kernel.cuh"
#include "comm/gpu/convert_kernel.hpp"
#include "comm/gpu/cuda_check.hpp"

namespace kolo::comm {
namespace {

template <class Convert>
__global__ void __launch_bounds__(kConvertThreads)
    convert_kernel(const __grid_constant__ ConvertTable table, Convert convert) {
  convert_block(table, convert, blockIdx.x, threadIdx.x);
}

template <class Convert>
void launch(const ConvertTable& table, Convert convert, DeviceStream stream) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(table.blocks()));
  config.blockDim = dim3(kConvertThreads);
  config.stream = stream;
  KOLO_CUDA_TRY(cudaLaunchKernelEx(&config, convert_kernel<Convert>, table, convert));
}

}  // namespace

void launch_convert(const ConvertTable& table, DeviceConversion conversion, DeviceStream stream) {
  visit_conversion(conversion, [&](auto convert) { launch(table, convert, stream); });
}

void launch_fill(const ConvertTable& table, std::uint64_t value, std::size_t size,
                 DeviceStream stream) {
  visit_size(size, [&](auto element) {
    using Element = decltype(element);
    launch(table, Fill<Element>{static_cast<Element>(value)}, stream);
  });
}

}  // namespace kolo::comm
