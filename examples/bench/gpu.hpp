#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "bench/options.hpp"
#include "bench/public_calls.hpp"
#include "bench/rank.hpp"
#include "bench/workload.hpp"
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

/// Times tensors on a GPU, all of them in `memory`. GPU events and the host's clock enclose a block
/// of calls, without waiting for the GPU in between. The memory is zeroed before a block, and calls
/// on zeros leave it so.
class DeviceTimer final : public Timer {
 public:
  /// `barrier` returns once all ranks have called it. All arguments must outlive the timer.
  DeviceTimer(Gpu& gpu, const GrowingBuffer& memory, int rank, int ranks,
              std::function<void()> barrier);

  Block run(const Workload& workload, const Case& bench_case, int iterations) override;
  std::uint64_t count_wrong(const Workload& workload, const Case& bench_case) override;
  GpuDescription gpu() const override { return gpu_.description(); }

 private:
  Gpu& gpu_;
  const GrowingBuffer& memory_;
  int rank_;
  int ranks_;
  std::function<void()> barrier_;
};

/// What the processes of a job on GPUs measure.
struct DeviceRole {
  bool has_kolo = true;
  /// The reference name of NCCL's own calls, which says what algorithms NCCL may use; empty: these
  /// calls are not measured.
  std::string nccl{};
};

/// NCCL in Kolo's processes, with the same choice of algorithms as Kolo's communicators.
inline constexpr const char* kNcclBesideKolo = "NCCL";
/// NCCL in separate processes: with rings only, and with its own choice of algorithms.
inline constexpr const char* kNcclRing = "ring";
inline constexpr const char* kNcclAuto = "auto";

/// Kolo's whole path and NCCL's own calls on a GPU, on the same memory and the same stream.
class DeviceCases {
 public:
  /// Connects the GPUs. Collective. If the role has Kolo, the calling thread must have a current
  /// Runtime. `options` and `gpu` must outlive the cases. Throws kolo::InvalidArgument on all ranks
  /// if two of them use the same GPU and KOLO_SHARE_GPU is off.
  DeviceCases(const Options& options, DeviceRole role, int rank, int ranks, Gpu& gpu);
  DeviceCases(const DeviceCases&) = delete;  // cases point into it
  DeviceCases& operator=(const DeviceCases&) = delete;

  /// The cases that can run `workload`; valid until the next call.
  std::vector<Case> make(const Workload& workload);

  /// The memory that holds all tensors.
  const GrowingBuffer& memory() const { return memory_; }

 private:
  void connect_kolo();
  void add_kolo(const Workload& workload, bool in_place, std::vector<Case>& cases);
  void add_buckets(const Workload& workload, std::vector<Case>& cases);
  void add_raw(const Workload& workload, bool in_place, std::vector<Case>& cases);
  Layout layout_of(const Workload& workload, bool in_place) const;
  Calls calls_of(const Workload& workload, const Label& label) const;
  bool is_wanted(const std::string& algorithm) const;

  const Options& options_;
  DeviceRole role_;
  int rank_;
  int ranks_;
  Gpu& gpu_;
  GrowingBuffer memory_;
  std::unique_ptr<RawCollectives> raw_;
};

}  // namespace bench
