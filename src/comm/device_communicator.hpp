#pragma once

#include <cstddef>
#include <string>

#include "kolo/dtype.hpp"
#include "kolo/reduction.hpp"

struct CUstream_st;  // what a cudaStream_t points to

namespace kolo::comm {

/// A CUDA stream that somebody else owns.
using DeviceStream = CUstream_st*;

/// Collectives among GPUs, one a rank. A call puts an operation on a stream and returns; it runs
/// there behind all that was put before, as kernels do. Used by one thread at a time. All ranks put
/// the same operations in the same order.
class DeviceCommunicator {
 public:
  virtual ~DeviceCommunicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// Awaitable: the next operation may be put on a stream. Throws BackendError once anything has
  /// failed, also while operations run: whoever waits for a stream looks here from time to time. The
  /// communicator has been aborted on this rank then; the others' must be, too.
  virtual bool ready() = 0;

  /// Reduces `count` elements of device memory on `stream`, in place when `input == output`. Only
  /// when ready. Throws InvalidArgument for what the library below cannot reduce.
  virtual void all_reduce(const void* input, void* output, std::size_t count, DType dtype,
                          ReduceOp op, DeviceStream stream) = 0;

  /// Ends what is under way on this rank, without waiting for others. From then on every call throws
  /// BackendError with `reason`.
  virtual void abort(const std::string& reason) noexcept = 0;
};

}  // namespace kolo::comm
