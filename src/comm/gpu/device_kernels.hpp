#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "comm/gpu/gpu.hpp"

/// The kernels behind CudaGpu's arithmetic. ops/kernels defines them, so that this level includes
/// none of it.
///
/// They are launched on `stream`, which belongs to the calling thread's current device, by at most
/// `blocks` blocks where that is a parameter. Arguments have passed Gpu's checks. Throw BackendError
/// where a launch fails.
namespace kolo::comm {

/// Throws InvalidArgument, before anything is launched, for a conversion that no kernel does.
void launch_convert(std::span<const DeviceRun> runs, DeviceConversion conversion,
                    std::uint64_t blocks, DeviceStream stream);
/// Throws InvalidArgument where `to` is no address of an element.
void launch_fill(std::byte* to, std::size_t count, DType dtype, const Scalar& element,
                 std::uint64_t blocks, DeviceStream stream);
void launch_add_up(const DeviceVectors& vectors, DeviceWeights weights, std::byte* to,
                   std::uint64_t blocks, DeviceStream stream);
void launch_multiply_all(const DeviceVectors& vectors, double* products, double* partial,
                         DeviceStream stream);
void launch_weigh_adasum(const double* products, int matrices, int vectors, double* weights,
                         DeviceStream stream);

}  // namespace kolo::comm
