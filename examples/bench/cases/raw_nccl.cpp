#include "bench/cases/raw_nccl.hpp"

#include <mpi.h>
#include <nccl.h>

#include "bench/cases/mpi_world.hpp"
#include "bench/cases/public_calls.hpp"
#include "comm/gpu/nccl_communicator.hpp"

namespace bench {
namespace {

/// Rank 0's unique id, on all ranks.
ncclUniqueId invitation(int rank) {
  ncclUniqueId id{};
  if (rank == 0) KOLO_NCCL_TRY(ncclGetUniqueId(&id));
  MPI_Bcast(&id, sizeof(id), MPI_BYTE, 0, MPI_COMM_WORLD);
  return id;
}

kolo::comm::NcclComm join(int rank, int ranks) {
  const ncclUniqueId id = invitation(rank);
  ncclComm_t communicator = nullptr;
  const ncclResult_t code = ncclCommInitRank(&communicator, ranks, id, rank);
  kolo::comm::NcclComm owner(communicator);
  KOLO_NCCL_TRY(code);
  return owner;
}

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
        KOLO_NCCL_TRY(ncclAllReduce(tensor.input, tensor.output, tensor.count,
                                    kolo::comm::nccl_type(dtype), ncclSum, all, stream_));
        break;
      case Operation::ReduceScatter:
        KOLO_NCCL_TRY(ncclReduceScatter(tensor.input, tensor.output, tensor.count,
                                        kolo::comm::nccl_type(dtype), ncclSum, all, stream_));
        break;
      case Operation::AllGather:
        KOLO_NCCL_TRY(ncclAllGather(tensor.input, tensor.output, bytes, ncclUint8, all, stream_));
        break;
      case Operation::Broadcast:
        KOLO_NCCL_TRY(
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
      KOLO_NCCL_TRY(
          ncclSend(tensor.input + offset, bytes, ncclUint8, peer, communicator_.get(), stream_));
      KOLO_NCCL_TRY(
          ncclRecv(tensor.output + offset, bytes, ncclUint8, peer, communicator_.get(), stream_));
    }
    group.end();
  }

  cudaStream_t stream_;
  int ranks_;
  kolo::comm::NcclComm communicator_;
};

}  // namespace

std::unique_ptr<RawCollectives> connect_raw_nccl(cudaStream_t stream) {
  return std::make_unique<RawNccl>(stream);
}

}  // namespace bench
