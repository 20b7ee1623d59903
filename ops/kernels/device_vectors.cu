#include <algorithm>
#include <cstdint>

#include "comm/gpu/cuda_gpu.hpp"
#include "ops/kernels/adasum_kernels.hpp"
#include "ops/kernels/check_vectors.hpp"
#include "ops/kernels/device_vectors.cuh"
#include "ops/kernels/launch.cuh"

namespace kolo::ops {
namespace {

template <class Sum, class T>
__global__ void __launch_bounds__(kVectorThreads)
    add_up_kernel(VectorsOf<T> vectors, comm::DeviceWeights weights, T* to) {
  add_up_block<Sum>(vectors, weights, to, gridDim.x, blockIdx.x, threadIdx.x);
}

__device__ void add_threads(double* sums, std::uint32_t rows) {
  for (std::uint32_t half = kVectorThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    add_halves(sums, rows, half, threadIdx.x);
  }
  __syncthreads();
}

/// Part blockIdx.x of tile blockIdx.y.
template <class T>
__global__ void __launch_bounds__(kVectorThreads)
    multiply_kernel(VectorsOf<T> vectors, double* partial) {
  __shared__ double sums[kTileSums];
  const Tile tile = tile_at(vectors.vectors, blockIdx.y);
  multiply_part(vectors, tile, gridDim.x, blockIdx.x, threadIdx.x, sums);
  add_threads(sums, kTile * kTile);
  const std::uint64_t matrix = static_cast<std::uint64_t>(vectors.vectors) * vectors.vectors;
  store_tile(sums, tile, vectors.vectors, threadIdx.x, partial + blockIdx.x * matrix);
}

/// Element blockIdx.x of the matrix.
__global__ void __launch_bounds__(kVectorThreads)
    add_parts_kernel(const double* partial, std::uint32_t vectors, std::uint64_t parts,
                     double* products) {
  __shared__ double sums[kVectorThreads];
  add_parts(partial, vectors, blockIdx.x, parts, threadIdx.x, sums);
  add_threads(sums, 1);
  if (threadIdx.x == 0) products[blockIdx.x] = sums[0];
}

/// One matrix per thread.
__global__ void weigh_kernel(const double* products, int matrices, int vectors, double* weights) {
  const int matrix = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (matrix >= matrices) return;
  const std::int64_t offset = static_cast<std::int64_t>(matrix) * vectors;
  AdasumWeights(products + offset * vectors, vectors, weights + offset).compute();
}

}  // namespace
}  // namespace kolo::ops

namespace kolo {

void comm::CudaGpu::add_up(const DeviceVectors& vectors, DeviceWeights weights, std::byte* to,
                           DeviceStream stream) {
  const CudaDeviceGuard guard(index_);
  ops::check_vectors("sum", vectors);
  if (vectors.count == 0) return;
  ops::visit_vectors(vectors, [&]<class T>(const ops::VectorsOf<T>& typed) {
    constexpr std::uint64_t kElementsPerBlock = ops::kVectorThreads * ops::kWidthOf<T>;
    const std::uint64_t needed = (typed.count + kElementsPerBlock - 1) / kElementsPerBlock;
    const dim3 grid(static_cast<std::uint32_t>(std::min(needed, blocks_)));
    ops::visit_sum<T>(weights, [&]<class Sum>(Sum) {
      ops::launch(ops::add_up_kernel<Sum, T>, grid, ops::kVectorThreads, stream, typed, weights,
                  reinterpret_cast<T*>(to));
    });
  });
}

void comm::CudaGpu::multiply_all(const DeviceVectors& vectors, double* products, double* partial,
                                 DeviceStream stream) {
  const CudaDeviceGuard guard(index_);
  ops::check_vectors("dot products", vectors);
  ops::visit_vectors(vectors, [&]<class T>(const ops::VectorsOf<T>& typed) {
    const std::uint64_t parts = dot_product_parts(vectors.vectors);
    ops::launch(ops::multiply_kernel<T>,
                dim3(static_cast<std::uint32_t>(parts), ops::tile_count(typed.vectors)),
                ops::kVectorThreads, stream, typed, partial);
    ops::launch(ops::add_parts_kernel, dim3(typed.vectors * typed.vectors), ops::kVectorThreads,
                stream, static_cast<const double*>(partial), typed.vectors, parts, products);
  });
}

void comm::CudaGpu::weigh_adasum(const double* products, int matrices, int vectors, double* weights,
                                 DeviceStream stream) {
  const CudaDeviceGuard guard(index_);
  constexpr std::uint32_t kThreads = 32;
  const auto blocks = (static_cast<std::uint32_t>(matrices) + kThreads - 1) / kThreads;
  ops::launch(ops::weigh_kernel, dim3(blocks), kThreads, stream, products, matrices, vectors,
              weights);
}

}  // namespace kolo
