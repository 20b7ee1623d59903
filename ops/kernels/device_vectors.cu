#include <algorithm>
#include <cstdint>

#include "comm/gpu/cuda_gpu.hpp"
#include "ops/kernels/check_vectors.hpp"
#include "ops/kernels/device_vectors.cuh"
#include "ops/kernels/launch.cuh"

namespace kolo::ops {
namespace {

template <class T>
__global__ void __launch_bounds__(kVectorThreads)
    add_up_kernel(VectorsOf<T> vectors, comm::DeviceFactors factors, T* to) {
  add_up_block(vectors, factors, to, gridDim.x, blockIdx.x, threadIdx.x);
}

}  // namespace
}  // namespace kolo::ops

namespace kolo {

void comm::CudaGpu::add_up(const DeviceVectors& vectors, DeviceFactors factors, std::byte* to,
                           DeviceStream stream) {
  const CudaDeviceGuard guard(index_);
  ops::check_vectors(vectors);
  if (vectors.count == 0) return;
  ops::visit_vectors(vectors, [&]<class T>(const ops::VectorsOf<T>& typed) {
    constexpr std::uint64_t kElementsPerBlock = ops::kVectorThreads * ops::kWidthOf<T>;
    const std::uint64_t needed = (typed.count + kElementsPerBlock - 1) / kElementsPerBlock;
    const dim3 grid(static_cast<std::uint32_t>(std::min(needed, blocks_)));
    ops::launch(ops::add_up_kernel<T>, grid, ops::kVectorThreads, stream, typed, factors,
                reinterpret_cast<T*>(to));
  });
}

}  // namespace kolo
