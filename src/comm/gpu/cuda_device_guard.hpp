#pragma once

namespace kolo::comm {

/// Makes `device` the calling thread's current device while it exists.
///
/// It does not restore a device that this process did not use: that would create a context there,
/// hundreds of MB of another rank's GPU. Every new thread starts with device 0.
class CudaDeviceGuard {
 public:
  explicit CudaDeviceGuard(int device);
  CudaDeviceGuard(const CudaDeviceGuard&) = delete;  // it restores once
  CudaDeviceGuard& operator=(const CudaDeviceGuard&) = delete;
  ~CudaDeviceGuard();

 private:
  int previous_ = 0;
  bool has_changed_ = false;
};

}  // namespace kolo::comm
