#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <type_traits>

#include <cuda_runtime_api.h>
#include <nccl.h>

namespace kolo::comm {

std::string describe(cudaError_t code, const char* call);
std::string describe(ncclResult_t code, const char* call);

/// Clears a handled error: otherwise the next check in the process, for instance LibTorch's, would
/// attribute it to its own call.
inline void forget_cuda_error() noexcept { static_cast<void>(cudaGetLastError()); }

/// Throw BackendError if `call` has failed with `code`. A call of NCCL in progress has not failed.
void check(cudaError_t code, const char* call);
void check(ncclResult_t code, const char* call);
/// Log instead, for destructors, unless CUDA is shutting down with the process.
void check_nothrow(cudaError_t code, const char* call) noexcept;
void check_nothrow(ncclResult_t code, const char* call) noexcept;

}  // namespace kolo::comm

/// Call a function of CUDA or NCCL.
#define KOLO_CUDA_TRY(call) ::kolo::comm::check((call), #call)
#define KOLO_CUDA_TRY_NOTHROW(call) ::kolo::comm::check_nothrow((call), #call)

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
struct CudaMemoryDeleter {
  void operator()(std::byte* memory) const noexcept { KOLO_CUDA_TRY_NOTHROW(cudaFree(memory)); }
};

/// Owners of handles. Functions take plain, non-owning handles.
using CudaStream = std::unique_ptr<std::remove_pointer_t<cudaStream_t>, CudaStreamDeleter>;
using CudaEvent = std::unique_ptr<std::remove_pointer_t<cudaEvent_t>, CudaEventDeleter>;
using CudaMemory = std::unique_ptr<std::byte, CudaMemoryDeleter>;

/// Creates a stream of the current device; see Gpu::make_stream.
inline CudaStream make_high_priority_stream() {
  int lowest = 0;
  int highest = 0;
  KOLO_CUDA_TRY(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
  cudaStream_t stream = nullptr;
  KOLO_CUDA_TRY(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, highest));
  return CudaStream(stream);
}

inline CudaEvent make_event(unsigned flags) {
  cudaEvent_t event = nullptr;
  KOLO_CUDA_TRY(cudaEventCreateWithFlags(&event, flags));
  return CudaEvent(event);
}

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
