#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <type_traits>

#include <nccl.h>

#include "comm/gpu/cuda.hpp"
#include "comm/gpu/device_communicator.hpp"
#include "kolo/communicator.hpp"
#include "kolo/dtype.hpp"
#include "kolo/task.hpp"

namespace kolo::comm {

struct NcclCommDeleter {
  void operator()(ncclComm_t communicator) const noexcept {
    KOLO_CUDA_TRY_NOTHROW(ncclCommAbort(communicator));
  }
};

/// Owns an NCCL communicator. Its deleter aborts, which is right after a failure and never waits
/// for others; an orderly end finalizes and destroys the communicator first.
using NcclComm = std::unique_ptr<std::remove_pointer_t<ncclComm_t>, NcclCommDeleter>;

/// Combines the calls until `end` into one operation. Also ends the group if one of them throws:
/// otherwise this thread's next calls would be part of it.
class NcclGroup {
 public:
  NcclGroup() { KOLO_CUDA_TRY(ncclGroupStart()); }
  NcclGroup(const NcclGroup&) = delete;  // it ends once
  NcclGroup& operator=(const NcclGroup&) = delete;
  ~NcclGroup() {
    if (!has_ended_) static_cast<void>(ncclGroupEnd());  // an exception is being thrown
  }

  void end() {
    has_ended_ = true;
    KOLO_CUDA_TRY(ncclGroupEnd());
  }

 private:
  bool has_ended_ = false;
};

/// NCCL's name of a type. Throws InvalidArgument for a type that it cannot reduce.
ncclDataType_t nccl_type(DType dtype);
/// NCCL's name of an operation. Throws InvalidArgument if it is not defined.
ncclRedOp_t nccl_op(ReduceOp op, DType dtype);

/// A DeviceCommunicator over NCCL. The environment determines NCCL's algorithms; see set_up_nccl.
///
/// NCCL's communicator is non-blocking in all calls. A blocking one would hold the thread that
/// makes progress while NCCL connects to a peer, and forever if that peer has died, so the loss
/// would go unnoticed. The price is a thread that NCCL starts for each group of operations.
class NcclCommunicator final : public DeviceCommunicator {
 public:
  /// Connects the ranks of `communicator`, which have a GPU each, CUDA device `device` on this one,
  /// and sets `made`. Collective; uses the communicator's tag `tag`. Throws BackendError if NCCL
  /// fails; aborts on this rank if the Task is destroyed.
  static Task make(Communicator& communicator, int tag, int device,
                   std::unique_ptr<DeviceCommunicator>& made);

  /// Starts to connect; `ready` tells when that has finished.
  NcclCommunicator(int rank, int size, int device, const ncclUniqueId& id);
  NcclCommunicator(const NcclCommunicator&) = delete;  // one rank has one
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;
  /// Finalizes the communicator if nothing has failed and the others do so within a second; else
  /// begins to abort it.
  ~NcclCommunicator() override;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  bool ready() override;
  void all_reduce(const void* input, void* output, std::size_t count, DType dtype, ReduceOp op,
                  DeviceStream stream) override;
  void reduce_scatter(const void* input, void* output, std::span<const std::size_t> counts,
                      DType dtype, ReduceOp op, DeviceStream stream) override;
  void all_gather(const void* input, void* output, std::span<const std::size_t> counts, DType dtype,
                  DeviceStream stream) override;
  void broadcast(void* buffer, std::size_t count, DType dtype, int root,
                 DeviceStream stream) override;
  void all_to_all(const void* input, std::span<const std::size_t> sent, void* output,
                  std::span<const std::size_t> received, DType dtype, DeviceStream stream) override;
  void begin_group() override;
  void end_group() override;
  void abort(const std::string& reason) noexcept override;

 private:
  void require_alive() const;
  void require_counts(const char* operation, std::span<const std::size_t> counts) const;
  [[noreturn]] void fail(const std::string& reason);
  /// Calls `call` with the communicator. If NCCL refuses it, nothing else may be called: this rank
  /// is no longer in step with the others.
  template <class Call>
  void launch(Call call);

  int rank_;
  int size_;
  int device_;
  NcclComm communicator_;
  std::unique_ptr<NcclGroup> group_;  // open; null: none
  std::string reason_;                // why it has failed or was aborted; empty: neither
};

}  // namespace kolo::comm
