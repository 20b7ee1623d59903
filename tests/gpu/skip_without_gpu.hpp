#pragma once

#include <string>

#include <cuda_runtime_api.h>

namespace kolo::test {

/// Why this machine has no GPU; empty if it has one, also if that does not work: a broken one, or
/// one that an earlier test broke, fails tests.
inline std::string why_no_gpu() {
  int gpus = 0;
  const cudaError_t code = cudaGetDeviceCount(&gpus);
  const bool has_none = code == cudaErrorNoDevice || code == cudaErrorInsufficientDriver ||
                        code == cudaErrorStubLibrary;
  return has_none ? std::string("no GPU here: ") + cudaGetErrorString(code) : "";
}

}  // namespace kolo::test
