#pragma once

#include "comm/gpu/device_communicator.hpp"
#include "comm/gpu/gpu.hpp"
#include "runtime/data/ring_traffic.hpp"
#include "runtime/device/device_staging.hpp"

namespace kolo::runtime {

/// What the reductions of a lane have on its GPU. All of it is for one stream, on which each use of
/// the staging memory comes behind the one before.
struct DevicePath {
  comm::Gpu& gpu;
  comm::DeviceCommunicator& communicator;
  comm::DeviceStream stream;
  RingTraffic& traffic;
  DeviceStaging& staging;
};

}  // namespace kolo::runtime
