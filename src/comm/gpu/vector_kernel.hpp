#pragma once

#include <cstdint>

#include "comm/gpu/gpu.hpp"

namespace kolo::comm {

/// Gpu's operations on vectors, on `stream`, which belongs to the calling thread's current device.
/// Vectors have passed check_vectors. Throw BackendError where a launch fails.

/// By at most `blocks` blocks.
void launch_add_up(const DeviceVectors& vectors, DeviceWeights weights, std::byte* to,
                   std::uint64_t blocks, DeviceStream stream);
void launch_multiply_all(const DeviceVectors& vectors, double* products, double* partial,
                         DeviceStream stream);
void launch_weigh_adasum(const double* products, int matrices, int vectors, double* weights,
                         DeviceStream stream);

}  // namespace kolo::comm
