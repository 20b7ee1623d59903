#include "comm/gpu/cuda_check.hpp"

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

void throw_device_error(const std::string& text) { throw BackendError(text); }

void log_device_error(const std::string& text) noexcept { KOLO_LOG(Error) << text; }

}  // namespace kolo::comm
