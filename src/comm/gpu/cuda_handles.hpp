#pragma once

#include <cstddef>
#include <memory>
#include <type_traits>

#include <cuda_runtime_api.h>

#include "comm/gpu/cuda_check.hpp"

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

}  // namespace kolo::comm
