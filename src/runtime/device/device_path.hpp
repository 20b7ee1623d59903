#pragma once

#include "comm/gpu/device_communicator.hpp"
#include "comm/gpu/gpu.hpp"
#include "runtime/data/ring_traffic.hpp"
#include "runtime/device/device_staging.hpp"

namespace kolo::runtime {

/// A lane's resources on its GPU, for one stream, which orders the uses of the staging memory.
struct DevicePath {
  comm::Gpu& gpu;
  comm::DeviceCommunicator& communicator;
  comm::DeviceStream stream;
  RingTraffic& traffic;
  DeviceStaging& staging;
};

}  // namespace kolo::runtime
