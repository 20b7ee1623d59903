#include <cstdlib>
#include <fstream>
#include <string>
#include <utility>

#include <cuda_runtime_api.h>
#include <mpi.h>
#include <nccl.h>

#include "bench/gpu.hpp"
#include "bench/mpi_cases.hpp"
#include "bench/public_calls.hpp"
#include "comm/gpu/cuda.hpp"
#include "comm/gpu/cuda_gpus.hpp"
#include "comm/gpu/nccl_communicator.hpp"

namespace bench {

namespace {

using kolo::comm::CudaEvent;
using kolo::comm::CudaStream;

/// Rank 0's unique id, on all ranks.
ncclUniqueId invitation(int rank) {
  ncclUniqueId id{};
  if (rank == 0) KOLO_CUDA_TRY(ncclGetUniqueId(&id));
  MPI_Bcast(&id, sizeof(id), MPI_BYTE, 0, MPI_COMM_WORLD);
  return id;
}

kolo::comm::NcclComm join(int rank, int ranks) {
  const ncclUniqueId id = invitation(rank);
  ncclComm_t communicator = nullptr;
  const ncclResult_t code = ncclCommInitRank(&communicator, ranks, id, rank);
  kolo::comm::NcclComm owner(communicator);
  KOLO_CUDA_TRY(code);
  return owner;
}

/// NCCL as most programs use it: a blocking communicator over all ranks of MPI_COMM_WORLD, each
/// with its calling thread's current device.
class RawNccl final : public RawCollectives {
 public:
  explicit RawNccl(cudaStream_t stream)
      : stream_(stream), ranks_(size_of_world()), communicator_(join(rank_in_world(), ranks_)) {}

  void start(Operation operation, kolo::DType dtype, const std::vector<Tensor>& tensors,
             bool as_group) override {
    if (!as_group) {
      for (const Tensor& tensor : tensors) call(operation, dtype, tensor);
      return;
    }
    kolo::comm::NcclGroup group;
    for (const Tensor& tensor : tensors) call(operation, dtype, tensor);
    group.end();
  }

 private:
  void call(Operation operation, kolo::DType dtype, const Tensor& tensor) {
    ncclComm_t const all = communicator_.get();
    const std::size_t bytes = tensor.count * kolo::size_of(dtype);
    switch (operation) {
      case Operation::AllReduce:
        KOLO_CUDA_TRY(ncclAllReduce(tensor.input, tensor.output, tensor.count,
                                    kolo::comm::nccl_type(dtype), ncclSum, all, stream_));
        break;
      case Operation::ReduceScatter:
        KOLO_CUDA_TRY(ncclReduceScatter(tensor.input, tensor.output, tensor.count,
                                        kolo::comm::nccl_type(dtype), ncclSum, all, stream_));
        break;
      case Operation::AllGather:
        KOLO_CUDA_TRY(ncclAllGather(tensor.input, tensor.output, bytes, ncclUint8, all, stream_));
        break;
      case Operation::Broadcast:
        KOLO_CUDA_TRY(
            ncclBroadcast(tensor.output, tensor.output, bytes, ncclUint8, kRoot, all, stream_));
        break;
      case Operation::AllToAll: exchange(tensor, bytes); break;
    }
  }

  /// Sends `bytes` from every rank to every rank.
  void exchange(const Tensor& tensor, std::size_t bytes) {
    kolo::comm::NcclGroup group;
    for (int peer = 0; peer < ranks_; ++peer) {
      const std::size_t offset = static_cast<std::size_t>(peer) * bytes;
      KOLO_CUDA_TRY(
          ncclSend(tensor.input + offset, bytes, ncclUint8, peer, communicator_.get(), stream_));
      KOLO_CUDA_TRY(
          ncclRecv(tensor.output + offset, bytes, ncclUint8, peer, communicator_.get(), stream_));
    }
    group.end();
  }

  cudaStream_t stream_;
  int ranks_;
  kolo::comm::NcclComm communicator_;
};

/// A stream like a program's own: normal priority, not synchronized with the default stream.
CudaStream make_stream() {
  cudaStream_t stream = nullptr;
  KOLO_CUDA_TRY(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return CudaStream(stream);
}

/// An event that records time; waiting for it sleeps instead of spinning.
CudaEvent make_timer() {
  cudaEvent_t event = nullptr;
  KOLO_CUDA_TRY(cudaEventCreateWithFlags(&event, cudaEventBlockingSync));
  return CudaEvent(event);
}

/// Formats CUDA's version number, as in "12.8".
std::string cuda_number(int version) {
  return std::to_string(version / 1000) + '.' + std::to_string(version % 1000 / 10);
}

/// Formats NCCL's version number, as in "2.28.9".
std::string nccl_number(int version) {
  return std::to_string(version / 10000) + '.' + std::to_string(version % 10000 / 100) + '.' +
         std::to_string(version % 100);
}

/// The kernel driver's version: the first word of its version file that begins with a digit.
std::string kernel_driver() {
  std::ifstream file("/proc/driver/nvidia/version");
  for (std::string word; file >> word;) {
    if (word.front() >= '0' && word.front() <= '9') return word;
  }
  return "of unknown version";
}

/// The GPU that is the calling thread's current device.
class CudaGpu final : public Gpu {
 public:
  explicit CudaGpu(std::shared_ptr<kolo::comm::Gpu> gpu) : gpu_(std::move(gpu)) {}

  GpuDescription description() const override {
    cudaDeviceProp properties{};
    int driver = 0;
    int runtime = 0;
    int nccl = 0;
    KOLO_CUDA_TRY(cudaGetDeviceProperties(&properties, gpu_->index()));
    KOLO_CUDA_TRY(cudaDriverGetVersion(&driver));
    KOLO_CUDA_TRY(cudaRuntimeGetVersion(&runtime));
    KOLO_CUDA_TRY(ncclGetVersion(&nccl));
    const char* const algorithms = std::getenv("NCCL_ALGO");
    return {.name = properties.name,
            .driver = kernel_driver() + " (CUDA " + cuda_number(driver) + ')',
            .cuda = cuda_number(runtime),
            .nccl = nccl_number(nccl),
            .nccl_algo = algorithms == nullptr ? "" : algorithms};
  }

  kolo::Device device() const override { return {kolo::DeviceKind::Cuda, gpu_->index()}; }
  void* stream() const override { return stream_.get(); }
  std::shared_ptr<std::byte> allocate(std::size_t bytes) override { return gpu_->allocate(bytes); }

  void clear(std::byte* to, std::size_t bytes) override {
    KOLO_CUDA_TRY(cudaMemsetAsync(to, 0, bytes, stream_.get()));
  }
  void start_clock() override { KOLO_CUDA_TRY(cudaEventRecord(begin_.get(), stream_.get())); }
  void stop_clock() override { KOLO_CUDA_TRY(cudaEventRecord(end_.get(), stream_.get())); }

  void synchronize() override { KOLO_CUDA_TRY(cudaStreamSynchronize(stream_.get())); }
  double elapsed_us() override {
    KOLO_CUDA_TRY(cudaEventSynchronize(end_.get()));
    float milliseconds = 0;
    KOLO_CUDA_TRY(cudaEventElapsedTime(&milliseconds, begin_.get(), end_.get()));
    return static_cast<double>(milliseconds) * 1e3;
  }
  void upload(std::span<const std::byte> from, std::byte* to) override {
    KOLO_CUDA_TRY(
        cudaMemcpyAsync(to, from.data(), from.size(), cudaMemcpyHostToDevice, stream_.get()));
    synchronize();
  }
  void download(const std::byte* from, std::span<std::byte> to) override {
    KOLO_CUDA_TRY(
        cudaMemcpyAsync(to.data(), from, to.size(), cudaMemcpyDeviceToHost, stream_.get()));
    synchronize();
  }

  std::unique_ptr<RawCollectives> connect() override {
    return std::make_unique<RawNccl>(stream_.get());
  }

 private:
  std::shared_ptr<kolo::comm::Gpu> gpu_;
  CudaStream stream_ = make_stream();
  CudaEvent begin_ = make_timer();
  CudaEvent end_ = make_timer();
};

}  // namespace

std::unique_ptr<Gpu> open_gpu(int local_rank) {
  kolo::comm::Gpus& gpus = *kolo::comm::cuda_gpus();
  const int index = local_rank % gpus.count();
  KOLO_CUDA_TRY(cudaSetDevice(index));
  return std::make_unique<CudaGpu>(gpus.open(index));
}

}  // namespace bench
