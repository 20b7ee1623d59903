#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "bench/cases/case.hpp"
#include "bench/ranks/gpu_description.hpp"
#include "kolo/tensor_view.hpp"

namespace bench {

/// Collectives as a program without Kolo calls them, on the stream of the Gpu that made this
/// object.
class RawCollectives {
 public:
  virtual ~RawCollectives() = default;

  /// Enqueues the operation on each of `tensors`, one after another or as one group. Does not wait
  /// for the GPU.
  virtual void start(Operation operation, kolo::DType dtype, const std::vector<Tensor>& tensors,
                     bool as_group) = 0;
};

/// A rank's GPU with one stream, as a program has it. Not thread-safe. All functions throw
/// kolo::BackendError.
class Gpu {
 public:
  virtual ~Gpu() = default;

  virtual GpuDescription description() const = 0;
  virtual kolo::Device device() const = 0;
  virtual void* stream() const = 0;  ///< a cudaStream_t
  virtual std::shared_ptr<std::byte> allocate(std::size_t bytes) = 0;

  /// The next three are enqueued on the stream.
  virtual void clear(std::byte* to, std::size_t bytes) = 0;
  virtual void start_clock() = 0;
  virtual void stop_clock() = 0;

  /// The next four wait for the stream.
  virtual void synchronize() = 0;
  virtual double elapsed_us() = 0;  ///< between start_clock and stop_clock
  virtual void upload(std::span<const std::byte> from, std::byte* to) = 0;
  virtual void download(const std::byte* from, std::span<std::byte> to) = 0;

  /// Connects the GPUs of all ranks. Collective.
  virtual std::unique_ptr<RawCollectives> connect() = 0;
};

/// Opens the CUDA device of the rank with this local rank; a node's ranks are assigned to its
/// devices round-robin. Makes it the calling thread's current device. Throws kolo::InvalidArgument
/// if this program was built without CUDA, and kolo::BackendError, with the reason, if there is no
/// GPU.
std::unique_ptr<Gpu> open_gpu(int local_rank);

}  // namespace bench
