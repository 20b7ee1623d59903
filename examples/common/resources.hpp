#pragma once

#include <c10/core/Device.h>

#include "kolo/tensor_view.hpp"

namespace examples {

/// Gives this process its share of the node's cores, unless OMP_NUM_THREADS says how many threads
/// to use: by default each process would use as many as there are cores.
void share_cores(int local_size);

/// Whether every rank has such a device; a rank without one prints an error. Collective.
bool has_device(kolo::DeviceKind kind);

/// The device of this rank: the CPU, or the CUDA device with its local rank. If there are fewer
/// devices, ranks share them, which needs KOLO_SHARE_GPU=on. There must be at least one.
c10::Device device_of_rank(kolo::DeviceKind kind);

/// Waits until a CUDA device is idle.
void synchronize(const c10::Device& device);

}  // namespace examples
