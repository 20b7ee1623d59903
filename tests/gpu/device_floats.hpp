#pragma once

#include <cstddef>
#include <vector>

#include <cuda_runtime_api.h>

#include "comm/gpu/cuda.hpp"
#include "gpu/device_copy.hpp"

namespace kolo::test {

/// Device memory for one test.
class DeviceFloats {
 public:
  explicit DeviceFloats(std::size_t count) : count_(count) {
    KOLO_CUDA_TRY(cudaMalloc(reinterpret_cast<void**>(&data_), count * sizeof(float)));
  }
  DeviceFloats(const DeviceFloats&) = delete;  // memory is freed only once
  DeviceFloats& operator=(const DeviceFloats&) = delete;
  ~DeviceFloats() { cudaFree(data_); }

  float* data() const { return data_; }
  void set(const std::vector<float>& values) {
    copy_bytes(data_, values.data(), count_ * sizeof(float));
  }
  std::vector<float> get() const {
    std::vector<float> values(count_);
    copy_bytes(values.data(), data_, count_ * sizeof(float));
    return values;
  }

 private:
  std::size_t count_;
  float* data_ = nullptr;
};

}  // namespace kolo::test
