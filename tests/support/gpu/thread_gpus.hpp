#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "comm/gpu/device_communicator.hpp"
#include "comm/gpu/gpu.hpp"
#include "support/gpu/fake_collective.hpp"

namespace kolo::test {

/// Combines vectors that Gpu::add_up cannot: integers, minima, products. `inputs`, one per rank,
/// and `to` are memory of the GPU. Runs behind the work on `stream`; may block, since that work
/// waits for nothing that is launched later.
using CombineVectors =
    std::function<void(DType dtype, ReduceOp op, const std::vector<const std::byte*>& inputs,
                       std::byte* to, std::size_t count, comm::DeviceStream stream)>;

/// What the ThreadCommunicators of all ranks share.
struct ThreadGroup {
  /// One rank's part of a launch that all ranks make.
  struct Part {
    std::vector<FakeCall> calls;
    std::shared_ptr<CUevent_st> has_inputs{};  ///< recorded behind the work that writes the inputs
    std::shared_ptr<CUevent_st> has_read{};  ///< recorded behind all reads of inputs; null: not yet
  };
  struct Launch {
    std::map<int, Part> parts{};  ///< by rank
    int finished = 0;             ///< ranks that need it no more
  };

  explicit ThreadGroup(int ranks) : size(ranks) {}

  const int size;
  std::mutex mutex;
  int joined = 0;
  bool is_aborted = false;  ///< on a rank: nothing is launched any more
  std::map<std::uint64_t, Launch> launches;
};

/// Collectives among ranks that are threads of one process and share one GPU, by copies, kernels of
/// Kolo and events across the ranks' streams. It needs nothing of CUDA itself, so fake GPUs can
/// check its order.
///
/// Like a non-blocking NCCL, it launches while `ready` is polled:
///
///   1 all ranks have called: each waits on its stream for all inputs, and reads them into scratch
///     memory of its own;
///   2 all ranks have launched that: each waits on its stream for all reads, since they may be of
///     its outputs and of what it writes next, and copies its results to its outputs.
///
/// Streams wait only for work that is launched already, never for what a host is still to do. So
/// everything that is launched comes to its end, whatever any rank does.
class ThreadCommunicator final : public comm::DeviceCommunicator {
 public:
  /// `ready` is true once all ranks have joined.
  ThreadCommunicator(std::shared_ptr<ThreadGroup> group, int rank, std::shared_ptr<comm::Gpu> gpu,
                     CombineVectors combine);
  ThreadCommunicator(const ThreadCommunicator&) = delete;  // exactly one per rank
  ThreadCommunicator& operator=(const ThreadCommunicator&) = delete;
  /// Like NCCL, waits up to a second for the other ranks, then gives up.
  ~ThreadCommunicator() override;

  int rank() const override { return rank_; }
  int size() const override { return group_->size; }
  bool ready() override;

  void all_reduce(const void* input, void* output, std::size_t count, DType dtype, ReduceOp op,
                  comm::DeviceStream stream) override;
  void reduce_scatter(const void* input, void* output, std::span<const std::size_t> counts,
                      DType dtype, ReduceOp op, comm::DeviceStream stream) override;
  void all_gather(const void* input, void* output, std::span<const std::size_t> counts, DType dtype,
                  comm::DeviceStream stream) override;
  void broadcast(void* buffer, std::size_t count, DType dtype, int root,
                 comm::DeviceStream stream) override;
  void all_to_all(const void* input, std::span<const std::size_t> sent, void* output,
                  std::span<const std::size_t> received, DType dtype,
                  comm::DeviceStream stream) override;

  void begin_group() override;
  void end_group() override;

  /// Returns when no other rank reads this one's memory any more.
  void abort(const std::string& reason) noexcept override;

 private:
  enum class Phase : std::uint8_t { Idle, Called, HasRead };

  // The caller holds the group's mutex.
  void require_alive() const;
  void call(FakeCall call, comm::DeviceStream stream);
  void launch(std::vector<FakeCall> calls);
  bool advance();
  void read(ThreadGroup::Launch& launch);
  void read(std::span<const FakeCall> calls);
  void reduce(std::span<const FakeCall> calls);
  void write(const ThreadGroup::Launch& launch);
  void copy(std::span<const comm::DeviceRun> runs);
  void reserve(std::size_t bytes);
  std::byte* take(std::size_t bytes);

  bool has_ended(std::chrono::steady_clock::duration patience);
  void wait_for(const std::shared_ptr<CUevent_st>& event);

  std::shared_ptr<ThreadGroup> group_;
  int rank_;
  std::shared_ptr<comm::Gpu> gpu_;
  CombineVectors combine_;
  std::string reason_;  // of the failure or abort; empty: neither
  bool is_collecting_ = false;
  std::vector<FakeCall> collected_;
  comm::DeviceStream stream_ = nullptr;  // of the last call
  Phase phase_ = Phase::Idle;
  std::uint64_t launches_ = 0;
  std::vector<comm::DeviceRun> results_;  // from scratch memory to the outputs
  std::shared_ptr<std::byte> scratch_;
  std::size_t scratch_bytes_ = 0;
  std::size_t taken_ = 0;
  std::shared_ptr<CUevent_st> has_written_;  // recorded behind the last use of scratch memory
};

/// Groups that the ranks find by number.
class ThreadGroups {
 public:
  std::uint64_t make(int size);
  std::shared_ptr<ThreadGroup> find(std::uint64_t number);

 private:
  std::mutex mutex_;
  std::map<std::uint64_t, std::shared_ptr<ThreadGroup>> groups_;
};

/// A rank's GPUs, which are `gpus`, connected by ThreadCommunicators.
class ThreadGpus final : public comm::Gpus {
 public:
  ThreadGpus(std::shared_ptr<comm::Gpus> gpus, std::shared_ptr<ThreadGroups> groups,
             CombineVectors combine)
      : gpus_(std::move(gpus)), groups_(std::move(groups)), combine_(std::move(combine)) {}

  int count() override { return gpus_->count(); }
  std::shared_ptr<comm::Gpu> open(int index) override { return gpus_->open(index); }
  Task connect(Communicator& communicator, int tag, comm::Gpu& gpu,
               std::unique_ptr<comm::DeviceCommunicator>& made) override;

 private:
  std::shared_ptr<comm::Gpus> gpus_;
  std::shared_ptr<ThreadGroups> groups_;
  CombineVectors combine_;
};

}  // namespace kolo::test
