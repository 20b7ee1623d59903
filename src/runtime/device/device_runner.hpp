#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/intentional_leak.hpp"
#include "base/log.hpp"
#include "base/mutex.hpp"
#include "comm/gpu/device_communicator.hpp"
#include "comm/gpu/gpu.hpp"
#include "kolo/task.hpp"
#include "runtime/data/operation.hpp"
#include "runtime/data/set_context.hpp"
#include "runtime/device/device_backend.hpp"
#include "runtime/device/device_context.hpp"
#include "runtime/device/launch_queue.hpp"
#include "runtime/protocol/bits.hpp"
#include "runtime/protocol/request.hpp"

namespace kolo::runtime {

/// Aborts a communicator on a detached thread: NCCL may wait for a GPU or a peer that does not
/// respond.
class CommunicatorAbort {
 public:
  /// Call it once.
  void begin(std::shared_ptr<comm::DeviceCommunicator> communicator,
             const std::string& reason) noexcept {
    begun_at_ = Clock::now();
    *has_ended_ = false;
    try {
      std::thread([communicator, reason, has_ended = has_ended_] {
        communicator->abort(reason);
        *has_ended = true;
      }).detach();
    } catch (const std::exception& error) {
      *has_ended_ = true;
      KOLO_LOG(Error) << "abort on the GPU: " << error.what();
      leak_intentionally(std::move(communicator));
    }
  }
  /// Whether the abort is in progress and worth waiting for.
  bool is_in_progress() const { return !*has_ended_ && Clock::now() < begun_at_ + kLongest; }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::seconds kLongest{1};  // a slower abort ends with the process

  Clock::time_point begun_at_{};
  std::shared_ptr<std::atomic<bool>> has_ended_ = std::make_shared<std::atomic<bool>>(true);
};

/// Batches that were launched on a GPU, each kept until the GPU has finished it.
///
/// A separate thread queries the GPU. A query may block inside CUDA for as long as another thread
/// of the program waits for the GPU, and must not block a thread that other ranks need.
class LaunchedBatches {
 public:
  struct Batch {
    std::shared_ptr<CUevent_st> launch;  // timers around its last collective; null: it is not timed
    std::shared_ptr<CUevent_st> done;
    std::shared_ptr<void> mark;  // for profilers
    Operation::Clock::time_point give_up_at;
    Operations operations;
    std::vector<std::shared_ptr<void>> owners;  // of other memory
  };

  LaunchedBatches() = default;
  LaunchedBatches(const LaunchedBatches&) = delete;  // its thread refers to it
  LaunchedBatches& operator=(const LaunchedBatches&) = delete;
  ~LaunchedBatches() { end(); }

  /// All batches are on one GPU and one stream, added in the order of their launch.
  void add(comm::Gpu& gpu, Batch batch);
  /// The GPU has failed. Any thread.
  void fail(std::exception_ptr error);
  /// Throws the error of `fail` or of a failed query.
  void check();
  /// Whether the GPU has finished all batches.
  bool empty();
  /// Describes the first batch if it has not ended at its `give_up_at`; otherwise empty.
  std::string overdue(Operation::Clock::time_point now);
  /// Time that the collectives of finished batches took on the GPU, if they were launched after the
  /// first call of this.
  double seconds();
  bool is_timed() const { return is_timed_; }
  /// Ends the thread without waiting for batches.
  void end();
  /// Stops querying, without waiting for a query in progress: no more batches are released. The
  /// object must then live as long as the process.
  void abandon();

 private:
  void stop();
  void release_ended(comm::Gpu& gpu);

  Mutex lock_;
  std::condition_variable_any changed_;
  std::deque<Batch> batches_ KOLO_GUARDED_BY(lock_);
  double seconds_ KOLO_GUARDED_BY(lock_) = 0.0;
  std::atomic<bool> is_timed_{false};
  std::exception_ptr error_ KOLO_GUARDED_BY(lock_);
  bool is_stopping_ KOLO_GUARDED_BY(lock_) = false;
  std::thread thread_;  // from the first call of add() on
};

/// Runs an engine's batches on GPUs: launches them on its own stream, in the agreed order, without
/// waiting for them. The stream waits for an operation's `ready` before its work, and records its
/// `done` afterwards; the operation's memory is kept alive until then.
///
/// GPUs are connected when the first batch runs. Unless noted otherwise, functions are for the
/// thread that makes progress in the engine.
class DeviceRunner {
 public:
  /// All arguments outlive the runner, which is the only user of the communicator of `set`. A rank
  /// that takes part without tensors of its own uses the GPU of its `local_rank` (see RankGpu). Two
  /// ranks may use one GPU only with KOLO_SHARE_GPU.
  ///
  /// @param set its number, 0 for the world
  DeviceRunner(comm::Gpus& gpus, const SetContext& set, LaunchQueue& launches, int number,
               bool is_matched_by_order, int local_rank);

  /// The GPU of this rank. Any thread.
  /// @throws InvalidArgument if this rank uses another GPU already
  /// @throws BackendError if there is no such GPU
  comm::Gpu& gpu(int index) { return gpu_.use(index); }
  /// Makes the operation wait for the work that is on its stream now. Any thread. If a call on the
  /// GPU fails, check_launched() throws its error, and the operation never runs. Throws as `gpu`.
  void prepare(Operation& operation);
  /// Makes later work on `stream` wait for the operation, which has been launched. Any thread.
  void order_after(const Operation& operation, comm::DeviceStream stream);

  /// Call it right before the operation is queued, in the same order. See LaunchQueue: throws
  /// TimeoutError.
  void line_up(Operation& operation);

  /// Launches one batch, like HostRunner::run, when its turn among those of all sets has come.
  Task run(Operations batch, bool have_some_joined);
  /// Whether batches of other sets, here or on other ranks, may be waiting for the launch of one:
  /// until then this rank must not start anything that may take long. Where operations are matched
  /// by order, those on CPUs do not wait for those on GPUs.
  bool is_launching() const { return is_launching_; }
  /// See make_stand_in.
  std::shared_ptr<Operation> make_stand_in(const Request& request);

  /// @throws BackendError if the GPU has failed, or a batch has not ended long after its deadline
  void check_launched();
  /// Whether the GPU has finished everything that was launched.
  bool is_idle() { return launched_.empty(); }
  /// Closes the connection and releases the GPU's resources. Call it once nothing is being launched
  /// any more; afterwards only `order_after` and the counters below may be called. Waits up to a
  /// second for other ranks, which do the same.
  void release();
  /// Begins to abort everything in progress on this rank. NCCL may wait for a GPU or a peer that
  /// does not respond, so a detached thread does this without using the runner. The GPU may still
  /// use the memory of batches, so the runner must live as long as the process.
  void abort(const std::string& reason) noexcept;
  /// Whether the abort is in progress and worth waiting for.
  bool is_aborting() const { return abort_.is_in_progress(); }

  std::uint64_t bytes_sent() const { return traffic_.bytes(); }
  std::uint64_t bytes_packed() const { return traffic_.packed(); }
  /// See LaunchedBatches.
  double seconds() { return launched_.seconds(); }

 private:
  Task connect(const Request& first);
  Task require_own_gpus(const Request& first);
  Task take_turn(const Operations& batch);
  std::shared_ptr<CUevent_st> take_event(bool is_timed);
  /// Otherwise it waits for nobody, and nobody for it.
  bool has_peers() const { return set_.world_ranks.size() > 1; }
  Operation::Clock::time_point give_up_time(const Operations& batch) const;

  comm::Gpus& gpus_;
  const SetContext& set_;
  LaunchQueue& launches_;
  const int number_;
  const bool is_matched_by_order_;
  RankGpu gpu_;
  Pool<CUevent_st> events_;
  Pool<CUevent_st> timers_;
  Pool<std::byte> scratch_;
  RingTraffic traffic_;
  std::unique_ptr<comm::DeviceCommunicator> communicator_;
  std::optional<DeviceBackend> backend_;
  bool is_launching_ = false;
  std::shared_ptr<LaunchTurn> turn_;    // of the batch that is about to be launched
  std::shared_ptr<CUevent_st> launch_;  // right before the collective that it launched last
  bool is_aborted_ = false;
  CommunicatorAbort abort_;
  LaunchedBatches launched_;  // the last member: its thread uses the GPU
};

}  // namespace kolo::runtime
