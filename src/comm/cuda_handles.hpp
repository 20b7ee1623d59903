#pragma once

#include <memory>
#include <type_traits>

#include <cuda_runtime_api.h>

#include "comm/cuda_check.hpp"

namespace kolo::comm {

struct CudaStreamDeleter {
  void operator()(cudaStream_t stream) const noexcept {
    KOLO_CUDA_TRY_NOTHROW(cudaStreamDestroy(stream));
  }
};
struct CudaEventDeleter {
  void operator()(cudaEvent_t event) const noexcept {
    KOLO_CUDA_TRY_NOTHROW(cudaEventDestroy(event));
  }
};

/// Owners. Functions take the plain handles, which own nothing.
using CudaStream = std::unique_ptr<std::remove_pointer_t<cudaStream_t>, CudaStreamDeleter>;
using CudaEvent = std::unique_ptr<std::remove_pointer_t<cudaEvent_t>, CudaEventDeleter>;

/// A stream of the current device that does not wait for the default stream and goes before streams
/// of normal priority: communication that starts late makes all ranks late.
inline CudaStream make_high_priority_stream() {
  int lowest = 0;
  int highest = 0;
  KOLO_CUDA_TRY(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
  cudaStream_t stream = nullptr;
  KOLO_CUDA_TRY(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, highest));
  return CudaStream(stream);
}

/// An event for ordering streams; it keeps no time.
inline CudaEvent make_event() {
  cudaEvent_t event = nullptr;
  KOLO_CUDA_TRY(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  return CudaEvent(event);
}

/// Makes `device` the calling thread's current one as long as this lives.
class CudaDeviceGuard {
 public:
  explicit CudaDeviceGuard(int device) {
    KOLO_CUDA_TRY(cudaGetDevice(&previous_));
    if (device == previous_) return;
    KOLO_CUDA_TRY(cudaSetDevice(device));
    has_changed_ = true;
  }
  CudaDeviceGuard(const CudaDeviceGuard&) = delete;  // it restores once
  CudaDeviceGuard& operator=(const CudaDeviceGuard&) = delete;
  ~CudaDeviceGuard() {
    if (has_changed_) KOLO_CUDA_TRY_NOTHROW(cudaSetDevice(previous_));
  }

 private:
  int previous_ = 0;
  bool has_changed_ = false;
};

}  // namespace kolo::comm
