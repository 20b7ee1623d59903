#pragma once

#include <cuda_runtime_api.h>

namespace kolo::comm {

/// Makes `device` the calling thread's current device while it exists, and keeps the thread's calls
/// from disturbing graphs: otherwise another thread's capture in global mode would fail as soon as
/// this thread queries an event or allocates. Kolo's own work is never captured (see
/// Gpu::is_capturing).
///
/// It does not restore a device that this process does not use, such as device 0, with which every
/// new thread starts: that would create a context there and take hundreds of MB of another rank's
/// GPU.
class CudaDeviceGuard {
 public:
  explicit CudaDeviceGuard(int device);
  CudaDeviceGuard(const CudaDeviceGuard&) = delete;  // it restores once
  CudaDeviceGuard& operator=(const CudaDeviceGuard&) = delete;
  ~CudaDeviceGuard();

 private:
  int previous_ = 0;
  cudaStreamCaptureMode previous_mode_ = cudaStreamCaptureModeRelaxed;
  bool has_changed_ = false;
};

}  // namespace kolo::comm
