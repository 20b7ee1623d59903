#include <cstdint>
#include <cstring>

#include "comm/gpu/cuda_gpu.hpp"
#include "ops/kernels/device_convert.cuh"
#include "ops/kernels/launch.cuh"

namespace kolo::ops {
namespace {

template <class Convert>
__global__ void __launch_bounds__(kConvertThreads)
    convert_kernel(const __grid_constant__ ConvertTable table, Convert convert) {
  convert_block(table, convert, blockIdx.x, threadIdx.x);
}

template <class Convert>
void launch_table(const ConvertTable& table, Convert convert, comm::DeviceStream stream) {
  launch(convert_kernel<Convert>, dim3(static_cast<unsigned>(table.blocks())), kConvertThreads,
         stream, table, convert);
}

}  // namespace
}  // namespace kolo::ops

namespace kolo {

void comm::CudaGpu::convert(std::span<const DeviceRun> runs, DeviceConversion conversion,
                            DeviceStream stream) {
  const CudaDeviceGuard guard(index_);
  ops::check_conversion(runs, conversion);
  while (!runs.empty()) {
    const ops::ConvertTable table = ops::take_runs(runs, blocks_);
    if (table.runs == 0) continue;
    ops::visit_conversion(conversion,
                          [&](auto convert) { ops::launch_table(table, convert, stream); });
  }
}

void comm::CudaGpu::fill(std::byte* to, std::size_t count, DType dtype, const Scalar& element,
                         DeviceStream stream) {
  const CudaDeviceGuard guard(index_);
  const DeviceRun run{to, to, count};
  std::span<const DeviceRun> runs(&run, 1);
  ops::check_conversion(runs, {.from = dtype, .to = dtype});
  const ops::ConvertTable table = ops::take_runs(runs, blocks_);
  if (table.runs == 0) return;
  ops::visit_size(size_of(dtype), [&]<class Element>(Element value) {
    std::memcpy(&value, element.data(), sizeof(value));
    ops::launch_table(table, ops::Fill<Element>{value}, stream);
  });
}

}  // namespace kolo
