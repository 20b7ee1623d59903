#include "comm/gpu/cuda_gpu.hpp"

#include <exception>
#include <fstream>
#include <string>

#include <nvtx3/nvToolsExt.h>

#include "base/log.hpp"
#include "comm/gpu/cuda.hpp"
#include "comm/gpu/gpu.hpp"
#include "kolo/error.hpp"

namespace kolo::comm {
namespace {

/// About twice as many as run concurrently, to balance their load.
constexpr std::uint64_t kBlocksPerMultiprocessor = 16;

/// Releases the handle in the context of its GPU, on the thread of its last owner.
template <class Owner>
auto share(Owner owner, int device) {
  auto* const handle = owner.release();
  return std::shared_ptr<typename Owner::element_type>(
      handle, [device, release = owner.get_deleter()](auto* last) noexcept {
        int current = 0;
        // The process is ending: CUDA has released everything.
        if (cudaGetDevice(&current) == cudaErrorCudartUnloading) return;
        try {
          const CudaDeviceGuard guard(device);
          release(last);
        } catch (const std::exception& error) {
          KOLO_LOG(Error) << error.what();
        }
      });
}

/// FNV-1a hash of what NCCL compares. Before 2.30 that is the place in a host, where all parts of a
/// GPU (MIG) are one.
std::uint64_t id_of(int device) {
  constexpr int kFirstThatComparesParts = 23000;
  cudaDeviceProp properties{};
  KOLO_CUDA_TRY(cudaGetDeviceProperties(&properties, device));
  int nccl = 0;
  KOLO_CUDA_TRY(ncclGetVersion(&nccl));
  std::string identity(properties.uuid.bytes, sizeof properties.uuid.bytes);
  if (nccl < kFirstThatComparesParts) {
    std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), identity);
    for (const int number : {properties.pciDomainID, properties.pciBusID, properties.pciDeviceID}) {
      identity.append("/").append(std::to_string(number));
    }
  }
  std::uint64_t id = 0xcbf29ce484222325;
  for (const char byte : identity) id = (id ^ static_cast<unsigned char>(byte)) * 0x100000001b3;
  return id;
}

}  // namespace

CudaGpu::CudaGpu(int index) : index_(index), id_(id_of(index)) {
  int multiprocessors = 0;
  KOLO_CUDA_TRY(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, index));
  blocks_ = static_cast<std::uint64_t>(multiprocessors) * kBlocksPerMultiprocessor;
}

std::shared_ptr<CUstream_st> CudaGpu::make_stream() {
  const CudaDeviceGuard guard(index_);
  return share(make_high_priority_stream(), index_);
}

std::shared_ptr<CUevent_st> CudaGpu::make_event() {
  const CudaDeviceGuard guard(index_);
  return share(comm::make_event(cudaEventDisableTiming), index_);
}

std::shared_ptr<CUevent_st> CudaGpu::make_timer() {
  const CudaDeviceGuard guard(index_);
  return share(comm::make_event(cudaEventDefault), index_);
}

std::shared_ptr<std::byte> CudaGpu::allocate(std::size_t bytes) {
  const CudaDeviceGuard guard(index_);
  void* memory = nullptr;
  cudaError_t code = cudaMalloc(&memory, bytes);
  if (code == cudaErrorMemoryAllocation) {
    forget_cuda_error();
    release_cached_memory();
    code = cudaMalloc(&memory, bytes);
  }
  if (code != cudaSuccess) {
    forget_cuda_error();
    throw BackendError("allocate " + std::to_string(bytes) + " bytes on GPU " +
                       std::to_string(index_) + ": " + describe(code, "cudaMalloc"));
  }
  return share(CudaMemory(static_cast<std::byte*>(memory)), index_);
}

bool CudaGpu::is_capturing(DeviceStream stream) {
  const CudaDeviceGuard guard(index_);
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  const cudaError_t code = cudaStreamIsCapturing(stream, &status);
  // The default stream would become part of a capture on a stream that waits for it.
  if (code == cudaErrorStreamCaptureImplicit) {
    forget_cuda_error();
    return true;
  }
  check(code, "cudaStreamIsCapturing");
  return status != cudaStreamCaptureStatusNone;
}

void CudaGpu::record(DeviceEvent event, DeviceStream stream) {
  const CudaDeviceGuard guard(index_);
  KOLO_CUDA_TRY(cudaEventRecord(event, stream));
}

void CudaGpu::wait(DeviceStream stream, DeviceEvent event) {
  const CudaDeviceGuard guard(index_);
  KOLO_CUDA_TRY(cudaStreamWaitEvent(stream, event, 0));
}

bool CudaGpu::has_passed(DeviceEvent event) {
  const CudaDeviceGuard guard(index_);
  const cudaError_t code = cudaEventQuery(event);
  if (code == cudaErrorNotReady) {
    forget_cuda_error();
    return false;
  }
  check(code, "cudaEventQuery");
  return true;
}

double CudaGpu::seconds_between(DeviceEvent first, DeviceEvent last) {
  const CudaDeviceGuard guard(index_);
  float milliseconds = 0.0F;
  KOLO_CUDA_TRY(cudaEventElapsedTime(&milliseconds, first, last));
  return 1e-3 * static_cast<double>(milliseconds);
}

std::shared_ptr<void> CudaGpu::mark(const std::string& name) {
  static const nvtxDomainHandle_t domain = nvtxDomainCreateA("kolo");
  if (domain == nullptr) return nullptr;  // no profiler
  nvtxEventAttributes_t attributes{};
  attributes.version = NVTX_VERSION;
  attributes.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  attributes.messageType = NVTX_MESSAGE_TYPE_ASCII;
  attributes.message.ascii = name.c_str();
  const nvtxRangeId_t range = nvtxDomainRangeStartEx(domain, &attributes);
  return {static_cast<void*>(domain), [range](void*) { nvtxDomainRangeEnd(domain, range); }};
}

}  // namespace kolo::comm
