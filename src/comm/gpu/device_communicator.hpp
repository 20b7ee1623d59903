#pragma once

#include <cstddef>
#include <exception>
#include <span>
#include <string>
#include <utility>

#include "comm/gpu/gpu.hpp"
#include "kolo/dtype.hpp"
#include "kolo/error.hpp"
#include "kolo/reduction.hpp"

namespace kolo::comm {

/// The connection to another rank has broken, perhaps because that rank has ended. Which one it is,
/// the control plane learns a little later.
class RemoteError : public BackendError {
 public:
  using BackendError::BackendError;
};

/// Collectives among GPUs, one per rank. A call launches an operation on a stream and returns. One
/// thread at a time; all ranks launch the same operations in the same order.
///
/// Buffers are memory of the GPU. Counts by rank are the same on all ranks and may be 0. Reductions
/// are Sum, Product, Min or Max, and apply no factors, since NCCL's NVLS does not. Throws
/// InvalidArgument for those that the underlying library does not support.
class DeviceCommunicator {
 public:
  virtual ~DeviceCommunicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// Awaitable: the last operation has been launched, and the next one may be. Until then nothing
  /// else may be launched on that stream: an event would be recorded before the operation. Throws
  /// BackendError once anything has failed (a RemoteError at first), also while operations run, so
  /// code that waits for a stream must call it periodically. The communicator must then be aborted
  /// on all ranks.
  virtual bool ready() = 0;

  /// Call the following functions only when ready.

  /// Combines `count` elements, in place if `input == output`.
  virtual void all_reduce(const void* input, void* output, std::size_t count, DType dtype,
                          ReduceOp op, DeviceStream stream) = 0;
  /// Combines `input`, which has as many elements as the sum of `counts`; `output` receives this
  /// rank's elements, and may be their place in `input`. The others in `input` do not change.
  virtual void reduce_scatter(const void* input, void* output, std::span<const std::size_t> counts,
                              DType dtype, ReduceOp op, DeviceStream stream) = 0;
  /// `output` receives all ranks' elements one after another; `input` may be this rank's place in
  /// it.
  virtual void all_gather(const void* input, void* output, std::span<const std::size_t> counts,
                          DType dtype, DeviceStream stream) = 0;
  virtual void broadcast(void* buffer, std::size_t count, DType dtype, int root,
                         DeviceStream stream) = 0;
  /// `input` holds `sent[r]` elements for each rank r one after another, `output` receives
  /// `received[r]` from each. Different memory.
  virtual void all_to_all(const void* input, std::span<const std::size_t> sent, void* output,
                          std::span<const std::size_t> received, DType dtype,
                          DeviceStream stream) = 0;

  /// Until `end_group`, operations are only collected; `end_group` launches them as one, for which
  /// NCCL starts one thread and one kernel. They run in no order, so none may use memory that
  /// another one writes. Meanwhile this thread must not query or launch anything else on the
  /// stream. See DeviceGroup.
  virtual void begin_group() = 0;
  virtual void end_group() = 0;

  /// Aborts operations in progress on this rank. From then on every call throws BackendError with
  /// the first reason. May block as long as a GPU or a peer does not respond: call it on a separate
  /// thread.
  virtual void abort(const std::string& reason) noexcept = 0;
};

/// Groups the operations called during its lifetime; `end` launches them as one. All ranks make the
/// same groups, because NCCL divides the GPU among the operations of a group.
class DeviceGroup {
 public:
  explicit DeviceGroup(DeviceCommunicator& communicator) : communicator_(&communicator) {
    communicator.begin_group();
  }
  DeviceGroup(const DeviceGroup&) = delete;  // it ends once
  DeviceGroup& operator=(const DeviceGroup&) = delete;
  ~DeviceGroup() {
    if (communicator_ == nullptr) return;
    try {
      communicator_->end_group();
    } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): an earlier one propagates
    }
  }

  void end() { std::exchange(communicator_, nullptr)->end_group(); }

 private:
  DeviceCommunicator* communicator_;  // null: it has ended
};

}  // namespace kolo::comm
