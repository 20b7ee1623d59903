#pragma once

#include <string>

#include <cuda_runtime_api.h>
#include <nccl.h>

namespace kolo::comm {

std::string describe(cudaError_t code, const char* call);
std::string describe(ncclResult_t code, const char* call);

/// Throws BackendError with `text`.
[[noreturn]] void throw_device_error(const std::string& text);
/// Logs instead, for destructors.
void log_device_error(const std::string& text) noexcept;
/// Clears a handled error: otherwise the next check in the process, for instance LibTorch's, would
/// attribute it to its own call.
inline void forget_cuda_error() noexcept { static_cast<void>(cudaGetLastError()); }

/// Throws BackendError if `call` has failed with `code`.
inline void check(cudaError_t code, const char* call) {
  if (code == cudaSuccess) return;
  forget_cuda_error();
  throw_device_error(describe(code, call));
}

}  // namespace kolo::comm

/// Calls a CUDA function; throws BackendError if it fails.
#define KOLO_CUDA_TRY(call) ::kolo::comm::check((call), #call)

/// Calls a CUDA function; logs if it fails, unless CUDA is shutting down with the process.
#define KOLO_CUDA_TRY_NOTHROW(call)                                                    \
  do {                                                                                 \
    const cudaError_t kolo_cuda_code = (call);                                         \
    if (kolo_cuda_code != cudaSuccess && kolo_cuda_code != cudaErrorCudartUnloading) { \
      ::kolo::comm::forget_cuda_error();                                               \
      ::kolo::comm::log_device_error(::kolo::comm::describe(kolo_cuda_code, #call));   \
    }                                                                                  \
  } while (false)

/// Calls an NCCL function; throws BackendError if it fails. A call in progress has not failed.
#define KOLO_NCCL_TRY(call)                                                            \
  do {                                                                                 \
    const ncclResult_t kolo_nccl_code = (call);                                        \
    if (kolo_nccl_code != ncclSuccess && kolo_nccl_code != ncclInProgress) {           \
      ::kolo::comm::throw_device_error(::kolo::comm::describe(kolo_nccl_code, #call)); \
    }                                                                                  \
  } while (false)
