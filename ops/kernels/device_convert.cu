#include <cstdint>
#include <cstring>

#include "comm/gpu/cuda.hpp"
#include "comm/gpu/device_kernels.hpp"
#include "ops/kernels/device_convert.cuh"

namespace kolo::ops {
namespace {

template <class Convert>
__global__ void __launch_bounds__(kConvertThreads)
    convert_kernel(const __grid_constant__ ConvertTable table, Convert convert) {
  convert_block(table, convert, blockIdx.x, threadIdx.x);
}

template <class Convert>
void launch(const ConvertTable& table, Convert convert, comm::DeviceStream stream) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(table.blocks()));
  config.blockDim = dim3(kConvertThreads);
  config.stream = stream;
  KOLO_CUDA_TRY(cudaLaunchKernelEx(&config, convert_kernel<Convert>, table, convert));
}

}  // namespace
}  // namespace kolo::ops

namespace kolo {

void comm::launch_convert(std::span<const DeviceRun> runs, DeviceConversion conversion,
                          std::uint64_t blocks, DeviceStream stream) {
  ops::check_conversion(runs, conversion);
  while (!runs.empty()) {
    const ops::ConvertTable table = ops::take_runs(runs, blocks);
    if (table.runs == 0) continue;
    ops::visit_conversion(conversion, [&](auto convert) { ops::launch(table, convert, stream); });
  }
}

void comm::launch_fill(std::byte* to, std::size_t count, DType dtype, const Scalar& element,
                       std::uint64_t blocks, DeviceStream stream) {
  const DeviceRun run{to, to, count};
  std::span<const DeviceRun> runs(&run, 1);
  ops::check_conversion(runs, {.from = dtype, .to = dtype});
  const ops::ConvertTable table = ops::take_runs(runs, blocks);
  if (table.runs == 0) return;
  ops::visit_size(size_of(dtype), [&]<class Element>(Element value) {
    std::memcpy(&value, element.data(), sizeof(value));
    ops::launch(table, ops::Fill<Element>{value}, stream);
  });
}

}  // namespace kolo
