#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "comm/gpu/gpu.hpp"
#include "kolo/dtype.hpp"
#include "kolo/reduction.hpp"

namespace kolo::comm {

/// How the elements of all GPUs are combined: every one times `factor` before, which is 1 unless
/// the operation is Sum of a floating type. Average, Adasum and Custom are not among these.
struct DeviceReduction {
  ReduceOp op = ReduceOp::Sum;
  double factor = 1.0;
};

/// Collectives among GPUs, one a rank. A call puts an operation on a stream and returns; it runs
/// there behind all that was put before, as kernels do. Used by one thread at a time. All ranks put
/// the same operations in the same order.
///
/// Memory is the GPU's. Where counts are given by rank they are the same on all ranks, and may be
/// 0. Throws InvalidArgument for what the library below cannot reduce.
class DeviceCommunicator {
 public:
  virtual ~DeviceCommunicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// Awaitable: the last operation is on its stream, and the next may be put on one. Until then
  /// nothing else may be put on that stream: an event would be recorded before the operation.
  /// Throws BackendError once anything has failed, also while operations run: whoever waits for a
  /// stream looks here from time to time. The communicator has been aborted on this rank then; the
  /// others' must be, too.
  virtual bool ready() = 0;

  /// All of the following only when ready.

  /// Combines `count` elements, in place where `input == output`.
  virtual void all_reduce(const void* input, void* output, std::size_t count, DType dtype,
                          DeviceReduction reduction, DeviceStream stream) = 0;
  /// Of the sum of `counts` elements in `input`, `output` gets this rank's combined; it may be
  /// their place in `input`, whose rest stays as it is.
  virtual void reduce_scatter(const void* input, void* output, std::span<const std::size_t> counts,
                              DType dtype, DeviceReduction reduction, DeviceStream stream) = 0;
  /// `output` gets all ranks' elements one after another; `input` may be this rank's place in it.
  virtual void all_gather(const void* input, void* output, std::span<const std::size_t> counts,
                          DType dtype, DeviceStream stream) = 0;
  virtual void broadcast(void* buffer, std::size_t count, DType dtype, int root,
                         DeviceStream stream) = 0;
  /// `input` holds `sent[r]` elements for each rank r one after another, `output` gets
  /// `received[r]` from each. Different memory.
  virtual void all_to_all(const void* input, std::span<const std::size_t> sent, void* output,
                          std::span<const std::size_t> received, DType dtype,
                          DeviceStream stream) = 0;

  /// Ends what is under way on this rank, without waiting for others. From then on every call
  /// throws BackendError with `reason`.
  virtual void abort(const std::string& reason) noexcept = 0;
};

}  // namespace kolo::comm
