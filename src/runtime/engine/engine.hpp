#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/creator_process.hpp"
#include "base/mutex.hpp"
#include "comm/world.hpp"
#include "insight/insight.hpp"
#include "kolo/communicator.hpp"
#include "kolo/metrics.hpp"
#include "ops/steps/nodes.hpp"
#include "runtime/control/control_plane.hpp"
#include "runtime/data/operation.hpp"
#include "runtime/data/set_context.hpp"
#include "runtime/engine/batch_executor.hpp"
#include "runtime/engine/progress_thread.hpp"
#include "runtime/engine/tensor_queue.hpp"
#include "runtime/protocol/header_exchange.hpp"

namespace kolo::runtime {

/// The engine of one process set on this rank: its queue of submissions, its control plane and its
/// batches, independent of all other engines.
///
/// An engine makes progress in steps, one thread at a time: its progress thread, or a caller that
/// waits for one of its operations, so that no other thread must wake up to move data. A step
/// never blocks, and moves a few chunks at most.
class Engine {
 public:
  struct Parts {
    SetContext set;
    /// That of `set`, if operations are matched by order; null: they are matched by name.
    OrderedCommunicator* order = nullptr;
    std::unique_ptr<Communicator> messages{};  ///< between two ranks
    ControlPlane::Parts control{};
    std::optional<BatchExecutor::DeviceParts> device{};  ///< none: a build without GPUs
    int number = 0;                                      ///< of the process set
  };

  /// Arguments passed by reference live until `end` has returned; the engine may live longer.
  Engine(Parts parts, comm::World& world, std::shared_ptr<insight::Insight> insight);
  ~Engine();
  /// From now on the engine makes progress by itself. Throws std::system_error if the system has no
  /// thread for it.
  void start_thread() { progress_thread_.start(); }

  /// Throws InvalidArgument for requests that no rank can run: unknown compressors and reductions.
  void check(const Request& request) const { set_.check(request); }
  bool uses_codec(const Request& request) const { return set_.codec_of(request) != nullptr; }
  /// The codec of that name, null for a compressor's. Throws InvalidArgument if there is neither.
  const Codec* codec_named(std::string_view name) const {
    return set_.choices.compressors.find_codec(name);
  }
  /// The ranks by nodes, for all-reduces that compress between nodes.
  ops::NodePlaces node_places() const { return {set_.node_of_rank, rank()}; }
  /// Whether there are several nodes, and the ranks of each can share memory.
  bool can_share_in_nodes() const { return set_.has_nodes(); }

  /// Call before submitting: makes an operation on a GPU wait for the work on its stream. Throws
  /// InvalidArgument or BackendError if this rank cannot use that GPU.
  void prepare(Operation& operation);
  /// Call once the operation is done: on a GPU, later work on `stream` waits for what has been
  /// launched of it. Throws its error, or that of a loss since: what the GPU has computed is
  /// undefined then.
  void finish(const Operation& operation, comm::DeviceStream stream);

  /// The GPU that this rank uses here. Throws InvalidArgument or BackendError if it cannot use this
  /// one.
  [[gnu::visibility("default")]] comm::Gpu& gpu(int index);  // libkolo.so uses both
  /// Whether floating-point sums are in rank order on GPUs, too, with the bits of the CPU.
  [[gnu::visibility("default")]] bool adds_in_rank_order(Collective collective) const;

  /// Whether operations of the ranks are matched by the order of their submission.
  bool is_matched_by_order() const { return is_matched_by_order_; }

  /// See ProcessSet::allocate().
  std::shared_ptr<std::byte> allocate(std::size_t bytes) const {
    const auto heap = heap_.lock();
    return heap != nullptr ? heap->allocate(bytes) : nullptr;
  }

  /// Queues an operation. Throws as TensorQueue::submit() does. Any other problem is found later
  /// and becomes the operation's error.
  void submit(std::shared_ptr<Operation> operation);

  /// Queues an operation and waits for it, without waking the progress thread. Throws as `submit`
  /// and `wait` do.
  void run(const std::shared_ptr<Operation>& operation);

  /// Queues a join after everything submitted so far. Throws InvalidArgument if one is in flight,
  /// or inside a step of this engine.
  void join(std::shared_ptr<Operation> operation);

  /// Makes progress until the operation is done or `until`, at least one step; true if it is done.
  /// Throws InvalidArgument inside a step of this engine, which would wait for itself.
  bool wait(Operation& operation, Operation::Clock::time_point until);
  /// Makes one progress step if the operation is not done; true if it is. Never blocks.
  bool poll(Operation& operation);

  /// See Handle::notify().
  void notify(Operation& operation, std::function<void()> notice);

  /// One progress step, unless a caller makes progress. True if something advanced.
  bool try_progress();

  /// Leaves the set, which closes it on all ranks, and blocks until nothing is pending or running
  /// here. Then releases all that the engine holds: its thread, communicators and shared memory.
  /// What remains answers handles and later submissions, with an error in which `why` completes
  /// "process set world: ". Any thread, also several at once: each call returns once the engine has
  /// ended. Throws InvalidArgument inside a step of this engine.
  void end(const std::string& why, Leaving how);
  /// Throws InvalidArgument inside a step of this engine, in which `what` must not be called.
  void require_outside_step(std::string_view what) const;
  /// This rank cannot go on in the set. The others learn of it at once, as of a loss. `how`
  /// completes "rank 3 ".
  void fail(const std::string& how);
  /// Logs how this process ends, a text that ends with `why`; false if another error has said it.
  bool report_end(const std::string& how, const std::string& why);
  /// Sends the final message of a dying process to all ranks. Any thread may call it, inside a
  /// progress step or not. The message is not sent if another thread never leaves its step. Clang
  /// cannot follow that it takes the lock only if the calling thread does not hold it already.
  void publish_end(const std::string& how) KOLO_NO_THREAD_SAFETY_ANALYSIS;
  /// The loss of a rank, which has closed the set. None during another thread's step: ask again.
  std::optional<LostRank> lost_rank();
  /// Whether a rank, of the set, has ended in it, as far as this rank knows. None during another
  /// thread's step: ask again.
  bool has_ended(int rank);
  /// Whether the loss of a rank has closed the set. Waits for another thread's step. Throws
  /// InvalidArgument inside a step of this engine.
  bool is_lost();
  /// Whether this process created the engine. A forked child has a copy, which must do nothing.
  bool is_in_creator_process() const { return creator_.is_current(); }

  /// For what the program does around the operations.
  insight::Recorder& recorder() const { return insight_->recorder(); }

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(set_.world_ranks.size()); }
  /// Names for unnamed operations: the same on all ranks that make the same calls in order.
  std::string next_name(std::string_view kind);
  /// A prefix for the names of an object's operations. Unlike names, it never repeats.
  std::string next_prefix(std::string_view kind);

  /// The world ranks that have joined, as far as this rank, which has not, has heard of it. Throws
  /// InvalidArgument inside a step of this engine.
  std::vector<int> joined_ahead();

  struct Metrics {
    Coordinator::Counters protocol;
    kolo::Metrics::Bytes bytes;
    double gpu_seconds = 0.0;  ///< that batches took on the GPU
  };
  /// Throws InvalidArgument inside a step of this engine.
  Metrics metrics();

 private:
  using Clock = Operation::Clock;
  class Waiter;

  /// GPUs of other ranks cannot be reached. At `until` this rank counts as lost, unless another
  /// loss explains it before.
  struct CutOff {
    std::string how;
    Clock::time_point until;
  };

  /// Callers that wait and make progress.
  struct Waiters {
    std::atomic<int> count{0};
    Mutex mutex;
    std::condition_variable_any operation_is_done;
  };

  void require_creator_process() const;
  bool wait(Operation& operation, Clock::time_point until, insight::Event::Time since);
  void enqueue(std::shared_ptr<Operation> operation);
  DeviceRunner& device_runner();
  bool is_on_gpu(const Operation& operation) const;
  /// How long threads spin for operations on GPUs; 0 where ranks share cores.
  std::chrono::nanoseconds launch_spin() const;
  void announce_wait(Operation& operation);
  /// A step costs as much as several polls of what it waits for.
  int polls_per_step() const;
  /// A step, unless another thread is in one.
  bool try_step(int polls);
  /// make_progress, and what follows from its errors.
  bool step(int polls) KOLO_REQUIRES(progress_mutex_);
  bool make_progress(Clock::time_point now, int polls) KOLO_REQUIRES(progress_mutex_);
  bool take_submissions(Clock::time_point now) KOLO_REQUIRES(progress_mutex_);
  bool advance_protocol(Clock::time_point now) KOLO_REQUIRES(progress_mutex_);
  void carry_out(Coordinator::Actions actions) KOLO_REQUIRES(progress_mutex_);
  void start(const Coordinator::Batch& batch) KOLO_REQUIRES(progress_mutex_);
  bool start_alone(const std::shared_ptr<Operation>& operation, Clock::time_point now)
      KOLO_REQUIRES(progress_mutex_);
  void check_order(Clock::time_point now) KOLO_REQUIRES(progress_mutex_);
  LostRank lost_by(const OrderBroken& broken) KOLO_REQUIRES(progress_mutex_);
  std::optional<LostRank> find_broken_order() KOLO_REQUIRES(progress_mutex_);
  void report_stall(const Verdict::Stall& stall) const;

  // Traces.
  void begin_course(Operation& operation) const;
  void note_agreed(Operation& operation, insight::Event::Time now,
                   const std::optional<std::pair<int, Time>>& last) KOLO_REQUIRES(progress_mutex_);
  void note_wait(Clock::time_point now) KOLO_REQUIRES(progress_mutex_);
  int awaited() KOLO_REQUIRES(progress_mutex_);
  int awaited(const Operation& operation) KOLO_REQUIRES(progress_mutex_);
  void note_pending(Clock::time_point now, std::chrono::nanoseconds age)
      KOLO_REQUIRES(progress_mutex_);
  void note_ended(Operation& operation, const std::optional<Failure>& failure)
      KOLO_REQUIRES(progress_mutex_);

  // Ends.
  void leave_when_closed(Clock::time_point now) KOLO_REQUIRES(progress_mutex_);
  void release(const std::string& why) KOLO_REQUIRES(progress_mutex_);
  Metrics measure() KOLO_REQUIRES(progress_mutex_);
  kolo::Metrics::Bytes bytes() KOLO_REQUIRES(progress_mutex_);
  void declare_lost(const LostRank& lost) KOLO_REQUIRES(progress_mutex_);
  bool end_stopped_batches(Clock::time_point now) KOLO_REQUIRES(progress_mutex_);
  std::exception_ptr find_lost_error(const Operation& operation) KOLO_REQUIRES(progress_mutex_);
  void report_lost(const LostRank& lost) KOLO_REQUIRES(progress_mutex_);
  /// Any thread, once `has_lost_` is set: from then on `lost_` stays as it is.
  [[noreturn]] void throw_lost(const Operation& operation) const KOLO_NO_THREAD_SAFETY_ANALYSIS;
  std::exception_ptr lost_error(const Operation& operation, const LostRank& lost) const;
  void declare_silent_rank_lost() KOLO_REQUIRES(progress_mutex_);
  void complete(const std::shared_ptr<Operation>& operation, std::exception_ptr error)
      KOLO_REQUIRES(progress_mutex_);
  int world_rank(int rank) const { return set_.world_rank(rank); }

  // Constant, or with locks of their own: any thread.
  comm::World& world_;
  const std::shared_ptr<insight::Insight> insight_;
  const std::chrono::nanoseconds spin_;  // of callers
  const CreatorProcess creator_;
  const std::weak_ptr<comm::SharedHeap> heap_;
  const int rank_;
  const int number_;
  const bool is_matched_by_order_;
  Mutex lining_up_;  // several threads submit in the order in which they line up
  TensorQueue queue_;
  std::atomic<int> on_gpu_{0};  // operations between their submission and their launch
  Waiters waiters_;

  Mutex progress_mutex_;  // held in a step

  // Used in steps. Any thread reads what SetContext::release() leaves, and what the executor's
  // device runner offers.
  SetContext set_;
  BatchExecutor executor_;
  insight::Meter& meter_;

  // Null once the engine has ended.
  std::unique_ptr<ControlPlane> control_ KOLO_GUARDED_BY(progress_mutex_);
  // Of `set_`; null, too, if operations are matched by name.
  OrderedCommunicator* order_ KOLO_GUARDED_BY(progress_mutex_);
  // Not agreed on yet.
  std::unordered_map<UseId, std::shared_ptr<Operation>> operations_
      KOLO_GUARDED_BY(progress_mutex_);
  std::optional<LostRank> lost_ KOLO_GUARDED_BY(progress_mutex_);
  std::atomic<bool> has_lost_{false};  // stored after `lost_`
  std::optional<CutOff> cut_off_ KOLO_GUARDED_BY(progress_mutex_);
  // Thrown by a notice in this step.
  std::exception_ptr notice_error_ KOLO_GUARDED_BY(progress_mutex_);
  // Something is in flight, or this rank wants to leave.
  bool needs_peers_ KOLO_GUARDED_BY(progress_mutex_) = false;
  Metrics at_end_ KOLO_GUARDED_BY(progress_mutex_);
  // For traces.
  std::uint64_t turns_ KOLO_GUARDED_BY(progress_mutex_) = 0;   // of operations, in the agreed order
  Clock::time_point step_ KOLO_GUARDED_BY(progress_mutex_){};  // when it began
  bool has_waited_ KOLO_GUARDED_BY(progress_mutex_) = false;   // in the last one no data advanced
  Clock::time_point next_look_ KOLO_GUARDED_BY(progress_mutex_){};  // for what is pending
  // After how long a wait the engine looks whom it waits for.
  insight::Event::Time look_after_ KOLO_GUARDED_BY(progress_mutex_){};

  ProgressThread progress_thread_;  // the last member: its thread uses the others
};

}  // namespace kolo::runtime
