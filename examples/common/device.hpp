#pragma once

#include <c10/core/Device.h>

#include "kolo/device.hpp"

namespace examples {

/// Whether every rank has such a device. Where one has not, it says so. Collective.
bool has_device(kolo::DeviceKind kind);

/// Where this rank trains: the CPU, or of the node's CUDA devices the one with its local rank;
/// where there are fewer, ranks share them, which takes KOLO_SHARE_GPU=on. There must be one.
c10::Device device_of_rank(kolo::DeviceKind kind);

/// Waits until a CUDA device has done what it was given.
void synchronize(const c10::Device& device);

}  // namespace examples
