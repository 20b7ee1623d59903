#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "comm/gpu/gpu.hpp"

/// The kernels behind CudaGpu's arithmetic. They are defined in ops/kernels, which this level must
/// not include.
///
/// They check their arguments as documented in Gpu, and are launched on `stream`, which belongs to
/// the calling thread's current device, with at most `blocks` blocks.
/// @throws InvalidArgument before anything is launched
/// @throws BackendError if a launch fails
namespace kolo::comm {

void launch_convert(std::span<const DeviceRun> runs, DeviceConversion conversion,
                    std::uint64_t blocks, DeviceStream stream);
void launch_fill(std::byte* to, std::size_t count, DType dtype, const Scalar& element,
                 std::uint64_t blocks, DeviceStream stream);
void launch_add_up(const DeviceVectors& vectors, DeviceWeights weights, std::byte* to,
                   std::uint64_t blocks, DeviceStream stream);
void launch_multiply_all(const DeviceVectors& vectors, double* products, double* partial,
                         DeviceStream stream);
void launch_weigh_adasum(const double* products, int matrices, int vectors, double* weights,
                         DeviceStream stream);
void launch_encode(const DeviceCodec& codec, std::span<const CodedRun> runs, DType from,
                   std::uint64_t blocks, DeviceStream stream);
void launch_decode(const DeviceCodec& codec, std::span<const CodedRun> runs, DType to,
                   double factor, std::uint64_t blocks, DeviceStream stream);
void launch_add_coded(const base::CodecFormat& format, const CodedInputs& inputs, float* sum,
                      std::uint64_t blocks, DeviceStream stream);

}  // namespace kolo::comm
