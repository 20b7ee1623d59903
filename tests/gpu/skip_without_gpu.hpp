#pragma once

#include <string>

#include <cuda_runtime_api.h>

namespace kolo::test {

/// Why no GPU can be used; empty if one can.
inline std::string why_no_gpu() {
  int gpus = 0;
  const cudaError_t code = cudaGetDeviceCount(&gpus);
  if (code == cudaSuccess && gpus > 0) return "";
  return std::string("no GPU here: ") + cudaGetErrorString(code);
}

}  // namespace kolo::test
