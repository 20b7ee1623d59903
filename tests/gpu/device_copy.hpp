#pragma once

#include <cstddef>

#include <cuda_runtime_api.h>

#include "comm/gpu/cuda.hpp"

namespace kolo::test {

/// Copies between the CPU and a GPU, and returns when all bytes have arrived. cudaMemcpy alone may
/// return before, if it copies pageable memory to the GPU, and orders nothing with the streams of
/// these tests, which do not wait for the default stream.
inline void copy_bytes(void* to, const void* from, std::size_t bytes) {
  KOLO_CUDA_TRY(cudaMemcpy(to, from, bytes, cudaMemcpyDefault));
  KOLO_CUDA_TRY(cudaStreamSynchronize(nullptr));
}

}  // namespace kolo::test
