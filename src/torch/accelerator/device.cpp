#include "torch/accelerator/device.hpp"

#include <vector>

#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/cuda.h>

#include "kolo/runtime.hpp"

namespace kolo::tensors {

c10::Device choose_device() {
  const auto devices = static_cast<int>(torch::cuda::device_count());
  if (devices == 0) return c10::kCPU;
  const c10::impl::VirtualGuardImpl cuda(c10::kCUDA);
  const Runtime& runtime = Runtime::current();
  if (runtime.local_size() > 1) {
    const int index = runtime.local_rank() % devices;
    cuda.setDevice({c10::kCUDA, static_cast<c10::DeviceIndex>(index)});
  }
  return cuda.getDevice();
}

c10::Device device_of(const torch::nn::Module& model) {
  const std::vector<at::Tensor> parameters = model.parameters();
  return parameters.empty() ? c10::Device(c10::kCPU) : parameters.front().device();
}

}  // namespace kolo::tensors
