#include <algorithm>
#include <cstdint>

#include "comm/gpu/cuda.hpp"
#include "comm/gpu/device_kernels.hpp"
#include "ops/kernels/coded_tiles.cuh"

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

template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), std::uint64_t tiles, std::uint64_t blocks,
            comm::DeviceStream stream, Arguments... arguments) {
  if (tiles == 0) return;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(std::min(tiles, blocks)));
  config.blockDim = dim3(kCodecThreads);
  config.stream = stream;
  KOLO_CUDA_TRY(cudaLaunchKernelEx(&config, kernel, arguments...));
}

}  // namespace
}  // namespace kolo::ops

namespace kolo {

void comm::launch_encode(const DeviceCodec& codec, std::span<const CodedRun> runs, DType from,
                         std::uint64_t blocks, DeviceStream stream) {
  ops::check_encoding(runs, from);
  while (!runs.empty()) {
    const ops::CodedTable table = ops::take_coded_runs(runs, codec.format);
    ops::visit_kind(codec.format.kind, [&](auto kind) {
      ops::launch(ops::encode_kernel<kind()>, table.tiles(), blocks, stream, table, codec, from);
    });
  }
}

void comm::launch_decode(const DeviceCodec& codec, std::span<const CodedRun> runs, DType to,
                         double factor, std::uint64_t blocks, DeviceStream stream) {
  ops::check_decoding(runs, to);
  while (!runs.empty()) {
    const ops::CodedTable table = ops::take_coded_runs(runs, codec.format);
    ops::visit_kind(codec.format.kind, [&](auto kind) {
      ops::launch(ops::decode_kernel<kind()>, table.tiles(), blocks, stream, table, codec, to,
                  static_cast<float>(factor));
    });
  }
}

void comm::launch_add_coded(const base::CodecFormat& format, const CodedInputs& inputs, float* sum,
                            std::uint64_t blocks, DeviceStream stream) {
  ops::check_coded_inputs(inputs);
  const std::uint64_t length = ops::tile_elements(format);
  const std::uint64_t tiles = (inputs.count + length - 1) / length;
  ops::visit_kind(format.kind, [&](auto kind) {
    ops::launch(ops::add_coded_kernel<kind()>, tiles, blocks, stream, format, inputs, tiles, sum);
  });
}

}  // namespace kolo
