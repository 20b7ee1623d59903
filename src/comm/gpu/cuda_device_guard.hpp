#pragma once

namespace kolo::comm {

/// Makes `device` the calling thread's current one as long as this lives.
///
/// The thread keeps it where the device before was not in use by this process: to go back to that
/// would put a context there, hundreds of MB of another rank's GPU. Every new thread has device 0.
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
