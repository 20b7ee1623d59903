#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "bench/cases/case.hpp"
#include "bench/ranks/gpu_description.hpp"
#include "kolo/device.hpp"

namespace bench {

/// Collectives as a program without Kolo calls them, on the stream of the GPU that made this.
class RawCollectives {
 public:
  virtual ~RawCollectives() = default;

  /// Puts the operation on each of `tensors` on the stream, one after another or as one group. Does
  /// not wait for the GPU.
  virtual void start(Operation operation, kolo::DType dtype, const std::vector<Tensor>& tensors,
                     bool as_group) = 0;
};

/// A rank's GPU with one stream, as a program has it. For one thread. All throw kolo::BackendError.
class Gpu {
 public:
  virtual ~Gpu() = default;

  virtual GpuDescription description() const = 0;
  virtual kolo::Device device() const = 0;
  virtual void* stream() const = 0;  ///< a cudaStream_t
  virtual std::shared_ptr<std::byte> allocate(std::size_t bytes) = 0;

  /// These are put on the stream, behind what is there.
  virtual void clear(std::byte* to, std::size_t bytes) = 0;
  virtual void start_clock() = 0;
  virtual void stop_clock() = 0;

  /// These wait for all that is on the stream.
  virtual void synchronize() = 0;
  virtual double elapsed_us() = 0;  ///< between start_clock and stop_clock
  virtual void upload(std::span<const std::byte> from, std::byte* to) = 0;
  virtual void download(const std::byte* from, std::span<std::byte> to) = 0;

  /// Connects the GPUs of all ranks. Collective.
  virtual std::unique_ptr<RawCollectives> connect() = 0;
};

/// The CUDA device that a rank uses who is `local_rank` among the ranks of its node: they take
/// turns. The calling thread uses it from then on. Throws kolo::InvalidArgument where this program
/// was built without CUDA, kolo::BackendError, with the reason, where there is no GPU.
std::unique_ptr<Gpu> open_gpu(int local_rank);

}  // namespace bench
