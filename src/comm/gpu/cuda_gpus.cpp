#include "comm/gpu/cuda_gpus.hpp"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <map>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include <cuda_runtime_api.h>
#include <nccl.h>

#include "base/mutex.hpp"
#include "comm/gpu/cuda.hpp"
#include "comm/gpu/cuda_gpu.hpp"
#include "comm/gpu/nccl_communicator.hpp"
#include "kolo/error.hpp"

namespace kolo::comm {
namespace {

std::atomic<void (*)()> end_before_cuda{nullptr};

/// Exit handlers run in the reverse order of registration; CUDA has just registered its own.
void register_end() {
  static std::once_flag once;
  std::call_once(once, [] {
    std::atexit([] {
      if (auto* const end = end_before_cuda.load()) end();
    });
  });
}

class CudaGpus final : public Gpus {
 public:
  int count() override {
    int gpus = 0;
    const cudaError_t code = cudaGetDeviceCount(&gpus);
    if (code != cudaSuccess) {
      forget_cuda_error();
      throw BackendError("this process sees no GPU: " + describe(code, "cudaGetDeviceCount") +
                         advice(code));
    }
    if (gpus == 0) throw BackendError("this process sees no GPU: CUDA counts none");
    return gpus;
  }

  std::shared_ptr<Gpu> open(int index) override {
    const int gpus = count();
    if (index < 0 || index >= gpus) {
      throw BackendError("open GPU " + std::to_string(index) + ": expected 0 to " +
                         std::to_string(gpus - 1));
    }
    const Lock lock(mutex_);
    std::weak_ptr<Gpu>& known = opened_[index];
    std::shared_ptr<Gpu> gpu = known.lock();
    if (gpu == nullptr) known = gpu = std::make_shared<CudaGpu>(index);
    register_end();
    return gpu;
  }

  Task connect(Communicator& communicator, int tag, Gpu& gpu,
               std::unique_ptr<DeviceCommunicator>& made) override {
    return NcclCommunicator::make(communicator, tag, gpu.index(), made);
  }

 private:
  static std::string advice(cudaError_t code) {
    if (code == cudaErrorInsufficientDriver) {
      return "; expected a driver for CUDA " + std::to_string(CUDART_VERSION / 1000) + "." +
             std::to_string(CUDART_VERSION % 1000 / 10) +
             " or newer: see what nvidia-smi says, if it is there";
    }
    if (code == cudaErrorNoDevice) return "; see what nvidia-smi and CUDA_VISIBLE_DEVICES say";
    return "";
  }

  Mutex mutex_;
  std::map<int, std::weak_ptr<Gpu>> opened_ KOLO_GUARDED_BY(mutex_);
};

}  // namespace

Gpus* cuda_gpus() {
  static CudaGpus gpus;
  return &gpus;
}

void at_exit_before_cuda(void (*end)()) { end_before_cuda = end; }

void set_up_nccl(std::string_view algo) {
  if (algo == "ring") ::setenv("NCCL_ALGO", "Ring", 0);
}

std::uint64_t usual_gpu(int local_rank) {
  int gpus = 0;
  if (cudaGetDeviceCount(&gpus) != cudaSuccess || gpus == 0) {
    forget_cuda_error();
    return 0;
  }
  return cuda_gpus()->open(local_rank % gpus)->id();
}

void let_ranks_share_gpus(std::span<const std::uint64_t> usual_gpus) {
  std::vector<std::uint64_t> gpus(usual_gpus.begin(), usual_gpus.end());
  std::ranges::sort(gpus);
  if (std::ranges::adjacent_find(gpus) == gpus.end()) return;
  // Not based on process ids, which may coincide in different containers.
  std::random_device random;
  const std::string id = "kolo-" + std::to_string(random()) + "-" + std::to_string(random());
  ::setenv("NCCL_HOSTID", id.c_str(), 0);
}

std::string cuda_version() {
  const auto number = [](int value) { return std::to_string(value); };
  return "CUDA " + number(CUDART_VERSION / 1000) + "." + number(CUDART_VERSION % 1000 / 10) +
         ", NCCL " + number(NCCL_MAJOR) + "." + number(NCCL_MINOR) + "." + number(NCCL_PATCH);
}

}  // namespace kolo::comm
