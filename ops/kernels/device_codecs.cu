#include <algorithm>
#include <cstdint>

#include "comm/gpu/cuda_gpu.hpp"
#include "ops/kernels/coded_tiles.cuh"
#include "ops/kernels/launch.cuh"

namespace kolo::ops {
namespace {

/// The threads of this block.
struct GpuTeam {
  template <class Work>
  __device__ void each(const Work& work) const {
    work(threadIdx.x);
    __syncthreads();
  }
  __device__ void add(std::uint32_t& counter, std::uint32_t n) const { atomicAdd(&counter, n); }
};

template <base::CodecKind kKind>
__global__ void __launch_bounds__(kCodecThreads)
    encode_kernel(const __grid_constant__ CodedTable table, comm::DeviceCodec codec, DType from) {
  __shared__ EncoderTile<kKind> shared;
  for (std::uint64_t tile = blockIdx.x; tile < table.tiles(); tile += gridDim.x) {
    encode_tile<kKind>(GpuTeam(), shared, codec, part_of(table, codec, tile), from);
  }
}

template <base::CodecKind kKind>
__global__ void __launch_bounds__(kCodecThreads)
    decode_kernel(const __grid_constant__ CodedTable table, comm::DeviceCodec codec, DType to,
                  float factor) {
  for (std::uint64_t tile = blockIdx.x; tile < table.tiles(); tile += gridDim.x) {
    decode_tile<kKind>(GpuTeam(), codec, part_of(table, codec, tile), to, factor);
  }
}

template <base::CodecKind kKind>
__global__ void __launch_bounds__(kCodecThreads)
    add_coded_kernel(base::CodecFormat format, const __grid_constant__ comm::CodedInputs inputs,
                     std::uint64_t tiles, float* sum) {
  for (std::uint64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    add_tile<kKind>(GpuTeam(), format, inputs, tile, sum);
  }
}

template <class Kernel, class... Arguments>
void launch_tiles(Kernel* kernel, std::uint64_t tiles, std::uint64_t blocks,
                  comm::DeviceStream stream, const Arguments&... arguments) {
  if (tiles == 0) return;
  const dim3 grid(static_cast<unsigned>(std::min(tiles, blocks)));
  launch(kernel, grid, kCodecThreads, stream, arguments...);
}

}  // namespace
}  // namespace kolo::ops

namespace kolo {

void comm::CudaGpu::encode(const DeviceCodec& codec, std::span<const CodedRun> runs, DType from,
                           DeviceStream stream) {
  const CudaDeviceGuard guard(index_);
  ops::check_encoding(runs, from);
  while (!runs.empty()) {
    const ops::CodedTable table = ops::take_coded_runs(runs, codec.format);
    ops::visit_kind(codec.format.kind, [&](auto kind) {
      ops::launch_tiles(ops::encode_kernel<kind()>, table.tiles(), blocks_, stream, table, codec,
                        from);
    });
  }
}

void comm::CudaGpu::decode(const DeviceCodec& codec, std::span<const CodedRun> runs, DType to,
                           double factor, DeviceStream stream) {
  const CudaDeviceGuard guard(index_);
  ops::check_decoding(runs, to);
  while (!runs.empty()) {
    const ops::CodedTable table = ops::take_coded_runs(runs, codec.format);
    ops::visit_kind(codec.format.kind, [&](auto kind) {
      ops::launch_tiles(ops::decode_kernel<kind()>, table.tiles(), blocks_, stream, table, codec,
                        to, static_cast<float>(factor));
    });
  }
}

void comm::CudaGpu::add_coded(const base::CodecFormat& format, const CodedInputs& inputs,
                              float* sum, DeviceStream stream) {
  const CudaDeviceGuard guard(index_);
  ops::check_coded_inputs(inputs);
  const std::uint64_t length = ops::tile_elements(format);
  const std::uint64_t tiles = (inputs.count + length - 1) / length;
  ops::visit_kind(format.kind, [&](auto kind) {
    ops::launch_tiles(ops::add_coded_kernel<kind()>, tiles, blocks_, stream, format, inputs, tiles,
                      sum);
  });
}

}  // namespace kolo
