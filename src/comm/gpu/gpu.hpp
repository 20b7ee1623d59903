#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "kolo/communicator.hpp"
#include "kolo/dtype.hpp"
#include "kolo/task.hpp"

namespace kolo::comm {

/// One element of any type except the complex ones, in the first bytes.
using Scalar = std::array<std::byte, 8>;

}  // namespace kolo::comm

struct CUstream_st;  // a cudaStream_t points to it
struct CUevent_st;   // a cudaEvent_t points to it

namespace kolo::comm {

class DeviceCommunicator;

/// Non-owning handles.
using DeviceStream = CUstream_st*;
using DeviceEvent = CUevent_st*;

/// Elements on the GPU to be converted. `from` may be `to` if both types have the same size.
struct DeviceRun {
  const std::byte* from;
  std::byte* to;
  std::size_t count;
};

/// to[i] = from[i] · factor / divisor. Floating types are multiplied in float32, float64 in its
/// own type; integers in double and truncated toward zero, as on the CPU; the division is in int64.
struct DeviceConversion {
  DType from = DType::Float32;
  DType to = DType::Float32;
  double factor = 1.0;
  std::int64_t divisor = 1;  ///< 1 unless `from` is Int64

  bool operator==(const DeviceConversion&) const = default;
};

/// Vectors of `count` elements of a floating type, `stride` elements apart.
struct DeviceVectors {
  const std::byte* first = nullptr;
  DType dtype = DType::Float32;
  std::size_t count = 0;
  std::size_t stride = 0;
  int vectors = 1;
};

/// Factors of a sum of vectors.
struct DeviceFactors {
  double before = 1.0;
  double after = 1.0;
};

/// A GPU. Calls with a stream launch their work there and return; no call waits for the GPU. Any
/// thread may call, one at a time on each stream. All calls throw BackendError.
class Gpu {
 public:
  virtual ~Gpu() = default;

  virtual int index() const = 0;  ///< as this process counts
  /// Identifies the GPU in all processes, whatever its index there.
  virtual std::uint64_t id() const = 0;

  /// A stream that does not wait for the default stream and has high priority: communication that
  /// starts late delays all ranks.
  virtual std::shared_ptr<CUstream_st> make_stream() = 0;
  /// An event without a time. An event that was never recorded has passed.
  virtual std::shared_ptr<CUevent_st> make_event() = 0;
  /// An event with the time at which it passed.
  virtual std::shared_ptr<CUevent_st> make_timer() = 0;
  /// Memory of this GPU. Releasing it may wait for the GPU, so do not do it in a loop. Throws
  /// BackendError if there is none left, and none that LibTorch has cached.
  virtual std::shared_ptr<std::byte> allocate(std::size_t bytes) = 0;

  /// Whether the program is capturing a graph on `stream`; calls with the stream would then become
  /// part of it.
  virtual bool is_capturing(DeviceStream stream) = 0;

  /// `event` passes when all work that is on `stream` now has ended.
  virtual void record(DeviceEvent event, DeviceStream stream) = 0;
  /// Makes later work on `stream` wait for `event` as it was recorded last.
  virtual void wait(DeviceStream stream, DeviceEvent event) = 0;
  /// Tests without blocking.
  virtual bool has_passed(DeviceEvent event) = 0;
  /// Between two timers that have passed.
  virtual double seconds_between(DeviceEvent first, DeviceEvent last) = 0;

  /// Opens a range in profilers' timelines (NVTX), until its last owner releases it. Null without a
  /// profiler.
  virtual std::shared_ptr<void> mark(const std::string& name) = 0;

  /// Converts all `runs` in one pass; the list may be freed when the call returns. Throws
  /// InvalidArgument, before anything is launched, for types and divisors without a kernel.
  virtual void convert(std::span<const DeviceRun> runs, DeviceConversion conversion,
                       DeviceStream stream) = 0;
  /// to[i] = element, of `count` elements.
  virtual void fill(std::byte* to, std::size_t count, DType dtype, const Scalar& element,
                    DeviceStream stream) = 0;

  /// to[i] = after · Σ before · v[i], summed in the order of the vectors: in float32, or float64
  /// for float64. Products are rounded, as on CPUs. `to` overlaps none of the vectors. Throws
  /// InvalidArgument, before anything is launched, for a type that is not floating and for
  /// misaligned vectors.
  virtual void add_up(const DeviceVectors& vectors, DeviceFactors factors, std::byte* to,
                      DeviceStream stream) = 0;
};

/// Sets what makes another allocator of the process, such as LibTorch's, return the memory of the
/// current GPU that it caches. It may wait for the GPU.
#pragma GCC visibility push(default)  // libkolo.so uses it
void set_release_of_cached_memory(void (*release)());
#pragma GCC visibility pop
/// Calls it, if it is set. For Gpu::allocate, before the GPU counts as full.
void release_cached_memory() noexcept;

/// The GPUs that this process sees, and their connection to those of other ranks.
class Gpus {
 public:
  virtual ~Gpus() = default;

  /// At least one. Throws BackendError if there is none.
  virtual int count() = 0;
  virtual std::shared_ptr<Gpu> open(int index) = 0;

  /// Connects the GPUs of all ranks of `communicator`, `gpu` on this one, and sets `made`.
  /// Collective; uses the communicator's tag `tag`. Throws BackendError; aborts on this rank if the
  /// Task is destroyed. Collectives of several communicators start on a GPU in no particular order:
  /// the caller orders them by events.
  virtual Task connect(Communicator& communicator, int tag, Gpu& gpu,
                       std::unique_ptr<DeviceCommunicator>& made) = 0;
};

}  // namespace kolo::comm
