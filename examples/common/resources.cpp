#include "common/resources.hpp"

#include <algorithm>
#include <cstdlib>
#include <string>

#include <ATen/Parallel.h>
#include <torch/cuda.h>

#include "common/agreement.hpp"
#include "kolo/runtime.hpp"

namespace examples {

void share_cores(int local_size) {
  if (std::getenv("OMP_NUM_THREADS") == nullptr) {
    at::set_num_threads(std::max(1, at::get_num_threads() / local_size));
  }
}

bool has_device(kolo::DeviceKind kind) {
  std::string error;
  if (kind == kolo::DeviceKind::Cuda && torch::cuda::device_count() == 0) {
    error = "--device cuda: LibTorch finds no GPU on rank " + std::to_string(kolo::rank()) +
            ". It takes a GPU with its driver, and a program linked with LibTorch for CUDA.";
  }
  return all_ranks_succeeded(error);
}

c10::Device device_of_rank(kolo::DeviceKind kind) {
  if (kind == kolo::DeviceKind::Cpu) return c10::kCPU;
  const auto count = static_cast<int>(torch::cuda::device_count());
  return {c10::kCUDA, static_cast<c10::DeviceIndex>(kolo::local_rank() % count)};
}

void synchronize(const c10::Device& device) {
  if (device.is_cuda()) torch::cuda::synchronize(device.index());
}

}  // namespace examples
