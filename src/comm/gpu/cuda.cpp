#include "comm/gpu/cuda.hpp"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "base/log.hpp"
#include "kolo/error.hpp"

namespace kolo::comm {

std::string describe(cudaError_t code, const char* call) {
  return std::string(call) + " failed with " + cudaGetErrorName(code) + ": " +
         cudaGetErrorString(code);
}

std::string describe(ncclResult_t code, const char* call) {
  return std::string(call) + " failed with code " + std::to_string(static_cast<int>(code)) + ": " +
         ncclGetErrorString(code) + ". " + ncclGetLastError(nullptr);
}

void check(cudaError_t code, const char* call) {
  if (code == cudaSuccess) return;
  forget_cuda_error();
  throw BackendError(describe(code, call));
}

void check(ncclResult_t code, const char* call) {
  if (code != ncclSuccess && code != ncclInProgress) throw BackendError(describe(code, call));
}

void check_nothrow(cudaError_t code, const char* call) noexcept {
  if (code == cudaSuccess || code == cudaErrorCudartUnloading) return;
  forget_cuda_error();
  KOLO_LOG(Error) << describe(code, call);
}

void check_nothrow(ncclResult_t code, const char* call) noexcept {
  if (code == ncclSuccess || code == ncclInProgress) return;
  KOLO_LOG(Error) << describe(code, call);
}

namespace {

using GetState = CUresult (*)(CUdevice device, unsigned* flags, int* is_active);

/// Looks up a driver function. The driver is not linked, because some machines have none.
GetState find_get_state() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult result{};
#if CUDART_VERSION >= 12050
  const cudaError_t code = cudaGetDriverEntryPointByVersion("cuDevicePrimaryCtxGetState", &function,
                                                            7000, cudaEnableDefault, &result);
#else
  const cudaError_t code =
      cudaGetDriverEntryPoint("cuDevicePrimaryCtxGetState", &function, cudaEnableDefault, &result);
#endif
  if (code != cudaSuccess || result != cudaDriverEntryPointSuccess) return nullptr;
  return reinterpret_cast<GetState>(function);
}

bool is_in_use(int device) {
  static const GetState get_state = find_get_state();
  unsigned flags = 0;
  int is_active = 0;
  return get_state == nullptr || get_state(device, &flags, &is_active) != CUDA_SUCCESS ||
         is_active != 0;
}

}  // namespace

CudaDeviceGuard::CudaDeviceGuard(int device) {
  KOLO_CUDA_TRY(cudaGetDevice(&previous_));
  if (device != previous_) {
    KOLO_CUDA_TRY(cudaSetDevice(device));
    has_changed_ = true;
  }
  KOLO_CUDA_TRY(cudaThreadExchangeStreamCaptureMode(&previous_mode_));
}

CudaDeviceGuard::~CudaDeviceGuard() {
  KOLO_CUDA_TRY_NOTHROW(cudaThreadExchangeStreamCaptureMode(&previous_mode_));
  if (has_changed_ && is_in_use(previous_)) KOLO_CUDA_TRY_NOTHROW(cudaSetDevice(previous_));
}

}  // namespace kolo::comm
