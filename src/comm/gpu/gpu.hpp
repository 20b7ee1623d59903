#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "comm/gpu/scalar.hpp"
#include "kolo/communicator.hpp"
#include "kolo/dtype.hpp"
#include "kolo/task.hpp"

struct CUstream_st;  // what a cudaStream_t points to
struct CUevent_st;   // what a cudaEvent_t points to

namespace kolo::comm {

class DeviceCommunicator;

/// A stream and an event that somebody else owns.
using DeviceStream = CUstream_st*;
using DeviceEvent = CUevent_st*;

/// A run of elements on the GPU that are converted from one place to another. `from` may be `to`
/// where both types are as large.
struct DeviceRun {
  const std::byte* from;
  std::byte* to;
  std::size_t count;
};

/// to[i] = from[i] · factor / divisor. Floating types are multiplied in float32, float64 in its
/// own; integers in double and truncated toward zero, as on the CPU; the division is one of int64.
struct DeviceConversion {
  DType from = DType::Float32;
  DType to = DType::Float32;
  double factor = 1.0;
  std::int64_t divisor = 1;  ///< 1 unless `from` is Int64
};

/// Vectors of `count` elements of a floating type, each `stride` elements behind the one before.
struct DeviceVectors {
  const std::byte* first = nullptr;
  DType dtype = DType::Float32;
  std::size_t count = 0;
  std::size_t stride = 0;
  int vectors = 1;
};

/// What vectors are multiplied by.
struct DeviceWeights {
  double before = 1.0;
  const double* each = nullptr;  ///< on the GPU, one for each vector; null: 1
  double after = 1.0;
};

/// Partial results of multiply_all, each of `vectors`² numbers. Few vectors are cut into many
/// parts, so that the GPU has enough to do; many have enough pairs for that.
constexpr std::size_t dot_product_parts(int vectors) {
  const auto count = static_cast<std::size_t>(vectors);
  return 1 + 8192 / (count * count + 16);
}

/// One GPU, as Kolo uses it. Calls that are given a stream put their work there and return; it runs
/// behind all that was put there before, as kernels do. No call waits for the GPU. Any thread may
/// call, one at a time and stream. All throw BackendError.
class Gpu {
 public:
  virtual ~Gpu() = default;

  virtual int index() const = 0;  ///< as this process counts
  /// The same for every process that sees this GPU, whatever its index there.
  virtual std::uint64_t id() const = 0;

  /// A stream that does not wait for the default stream and goes before streams of normal priority:
  /// communication that starts late makes all ranks late.
  virtual std::shared_ptr<CUstream_st> make_stream() = 0;
  /// An event for ordering streams; it keeps no time. One that was never recorded has passed.
  virtual std::shared_ptr<CUevent_st> make_event() = 0;
  /// An event that keeps the time at which it passes, too.
  virtual std::shared_ptr<CUevent_st> make_timer() = 0;
  /// Memory of this GPU. Giving it up may wait for the GPU: not in a loop.
  virtual std::shared_ptr<std::byte> allocate(std::size_t bytes) = 0;

  /// `event` passes when all that is on `stream` now has been done.
  virtual void record(DeviceEvent event, DeviceStream stream) = 0;
  /// What is put on `stream` from now on waits for `event` as it was recorded last.
  virtual void wait(DeviceStream stream, DeviceEvent event) = 0;
  /// Looks without blocking.
  virtual bool has_passed(DeviceEvent event) = 0;
  /// Between two timers that have passed.
  virtual double seconds_between(DeviceEvent first, DeviceEvent last) = 0;

  /// A range of this name in profilers' timelines (NVTX), until its last owner lets go of it. Null
  /// where no profiler listens.
  virtual std::shared_ptr<void> mark(const std::string& name) = 0;

  /// Converts all `runs` in one pass. They may be given up when it returns. Throws InvalidArgument,
  /// before anything is done, for pairs of types and divisors that are not converted.
  virtual void convert(std::span<const DeviceRun> runs, DeviceConversion conversion,
                       DeviceStream stream) = 0;
  /// to[i] = element, of `count` elements.
  virtual void fill(std::byte* to, std::size_t count, DType dtype, const Scalar& element,
                    DeviceStream stream) = 0;

  /// Operations on vectors. Throw InvalidArgument, before anything is launched, for a type that is
  /// not floating and for vectors that do not begin at the address of an element.

  /// to[i] = after · Σ before · each[v] · v[i], added up in the order of the vectors: in float64
  /// where there is `each`, else in float32, float64 in its own. Every product is rounded, as by
  /// the CPU. `to` overlaps none of the vectors.
  virtual void add_up(const DeviceVectors& vectors, DeviceWeights weights, std::byte* to,
                      DeviceStream stream) = 0;
  /// products[a · vectors + b] = the dot product of vectors a and b in float64, with the same bits
  /// whenever it is computed. `partial` has room for dot_product_parts of such matrices.
  virtual void multiply_all(const DeviceVectors& vectors, double* products, double* partial,
                            DeviceStream stream) = 0;
  /// Adasum's weights of as many vectors for each of `matrices` of multiply_all's.
  virtual void weigh_adasum(const double* products, int matrices, int vectors, double* weights,
                            DeviceStream stream) = 0;
};

/// The GPUs that this process sees, and how those of several ranks are connected.
class Gpus {
 public:
  virtual ~Gpus() = default;

  /// At least one. Throws BackendError that says why there is none.
  virtual int count() = 0;
  virtual std::shared_ptr<Gpu> open(int index) = 0;

  /// Connects the GPUs of the ranks of `communicator`, here `gpu`. Collective; uses the
  /// communicator's tag `tag` meanwhile. When the Task has ended `made` is set. Throws
  /// BackendError; given up, it aborts on this rank.
  virtual Task connect(Communicator& communicator, int tag, Gpu& gpu,
                       std::unique_ptr<DeviceCommunicator>& made) = 0;
};

}  // namespace kolo::comm
