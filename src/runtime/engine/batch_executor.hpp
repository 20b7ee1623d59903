#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/deadline.hpp"
#include "comm/world.hpp"
#include "kolo/metrics.hpp"
#include "kolo/task.hpp"
#include "runtime/data/host_runner.hpp"
#include "runtime/data/operation.hpp"
#include "runtime/data/point_to_point.hpp"
#include "runtime/data/set_context.hpp"
#include "runtime/device/device_runner.hpp"

namespace kolo::runtime {

/// Batches in the agreed order. Only the first one moves data.
class BatchQueue {
 public:
  using Clock = Operation::Clock;
  struct Batch {
    Task task;
    Operations operations;
    Clock::time_point overdue_at;  ///< or later: the next time to look for a rank that is lost
  };
  /// `operations` have ended, with `error` if set.
  struct Step {
    bool has_progressed = false;
    Operations operations{};
    std::exception_ptr error{};
  };
  /// Awaitable until this many batches have ended.
  struct EndOfBatches {
    const BatchQueue& queue;
    std::uint64_t awaited;

    bool ready() const { return queue.ended_ >= awaited; }
  };

  void push(Batch batch);
  bool empty() const { return batches_.empty(); }
  template <class Visit>
  void for_each(const Visit& visit) const {
    for (const Batch& batch : batches_) {
      for (const auto& operation : batch.operations) visit(*operation);
    }
  }
  const Batch& front() const { return batches_.front(); }

  /// Moves the first batch by a few chunks at most, until it has waited `polls` times. An
  /// AgreedFailure ends the batch; any other exception concerns only this rank and is thrown.
  Step advance(int polls);
  /// Whether the first batch is overdue; true once per `grace`.
  bool is_overdue(Clock::time_point now, std::chrono::nanoseconds grace);
  /// The end of all batches pushed so far. Refers to the queue.
  EndOfBatches end_of_all() const { return {*this, begun_}; }

  /// Removes and returns the batches that have not ended.
  std::deque<Batch> take_all();

 private:
  std::deque<Batch> batches_;
  std::uint64_t begun_ = 0;
  std::uint64_t ended_ = 0;
};

/// Batches that were stopped by the loss of a rank, until nothing uses their memory: live ranks may
/// still be sending into it or reading from it. Cancels their receives, and completes transfers
/// that cannot be cancelled. This takes at most kMaxDrainTime; after that, only a rank that is
/// alive but does not respond could still send the rest of a message.
class LostBatches {
 public:
  using Clock = BatchQueue::Clock;
  using Batches = std::deque<BatchQueue::Batch>;

  static constexpr auto kMaxDrainTime = std::chrono::milliseconds(500);
  /// Messages from a dead rank arrive within this time, or never.
  static constexpr auto kDeadRankDelay = std::chrono::milliseconds(50);

  /// The batches use `set` and its communicators. The arguments outlive this object.
  LostBatches(const SetContext& set, std::vector<Communicator*> communicators, comm::World& world)
      : set_(set), communicators_(std::move(communicators)), world_(world) {}

  void add(Batches batches);
  bool empty() const { return batches_.empty(); }

  /// All batches, once nothing uses their memory; none before. Never blocks.
  Batches take_drained(Clock::time_point now);

 private:
  bool is_drained(Clock::duration waited);
  bool is_drained(Communicator& communicator, Clock::duration waited,
                  const std::vector<int>& dead) const;
  bool is_alive(int rank, const std::vector<int>& dead) const;

  const SetContext& set_;
  const std::vector<Communicator*> communicators_;
  comm::World& world_;
  Batches batches_;
  std::optional<Clock::time_point> since_;
};

/// Runs the agreed batches of a process set. CPUs and GPUs have a queue each, so that data on one
/// kind of device does not wait for data on the other. No call blocks.
class BatchExecutor {
 public:
  using Clock = Operation::Clock;

  /// Moves data between GPUs.
  struct DeviceParts {
    comm::Gpus& gpus;
    LaunchQueue& launches;
    SetContext set;  ///< with a separate communicator
    int number = 0;  ///< of the set
    bool is_matched_by_order = false;
  };

  /// `set` and `world` outlive this object. `messages`: for those between two ranks. `device`:
  /// none in a build without GPUs.
  BatchExecutor(const SetContext& set, std::unique_ptr<Communicator> messages,
                std::optional<DeviceParts> device, comm::World& world);

  /// See DeviceRunner; any thread. Null in a build without GPUs.
  DeviceRunner* device_runner() const { return device_runner_.get(); }

  /// The contribution of this rank, which has joined, to `request`.
  std::shared_ptr<Operation> make_stand_in(const Request& request) const;
  /// Appends a batch to its queue. `have_some_joined`: as Coordinator::Batch has it.
  void start(Operations operations, bool have_some_joined);
  /// Appends an operation of a set whose operations are matched by order; those on CPUs run over
  /// `order`, which outlives it. Others are launched in the order of submission.
  void start_in_order(std::shared_ptr<Operation> operation, OrderedCommunicator& order);
  /// The operations whose data move now on CPUs; empty: none.
  std::span<const std::shared_ptr<Operation>> first_on_cpu() const {
    return on_cpu_.empty() ? std::span<const std::shared_ptr<Operation>>()
                           : on_cpu_.front().operations;
  }
  /// Calls `visit(operation)` for everything that has started, messages included.
  template <class Visit>
  void for_each(const Visit& visit) const {
    for (const BatchQueue* const queue : {&on_cpu_, &on_gpu_}) queue->for_each(visit);
    point_to_point_->for_each(visit);
  }
  /// Between two ranks: sends and receives, which wait for no batch.
  PointToPoint& messages() { return *point_to_point_; }
  /// Appends a join, which completes after the batches of both queues.
  void start_join(std::shared_ptr<Operation> join);

  struct Progress {
    bool has_progressed = false;
    bool is_overdue = false;  ///< a batch has missed its deadline, and takes KOLO_LOST_AFTER
  };
  /// Moves the first batch of each queue by a few chunks at most, until it has waited `polls`
  /// times. Calls `complete(operation, error)` for operations that have ended. Throws errors that
  /// concern only this rank.
  template <class Complete>
  Progress advance(Clock::time_point now, int polls, const Complete& complete) {
    Progress progress;
    for (BatchQueue* const queue : {&on_cpu_, &on_gpu_}) {
      // The program's functions run in batches on CPUs.
      if (queue == &on_cpu_ && is_launching()) continue;
      const BatchQueue::Step step = queue->advance(polls);
      for (const auto& operation : step.operations) complete(operation, step.error);
      progress.is_overdue |= queue->is_overdue(now, set_.longest_silence());
      progress.has_progressed |= step.has_progressed;
    }
    progress.has_progressed |= point_to_point_->advance(now);
    progress.is_overdue |= point_to_point_->is_overdue(now);
    while (const auto ended = point_to_point_->take_ended()) {
      complete(ended->operation, ended->error);
    }
    if (device_runner_ != nullptr) device_runner_->check_launched();
    return progress;
  }
  /// Nothing is queued or moving, including on GPUs. Messages that are not matched may wait.
  bool is_idle();

  /// Releases everything, once the set is closed on all ranks and nothing is queued. Afterwards
  /// only `device_runner` may be used, for operations that have ended.
  void release();
  /// A rank is lost: stops all batches. MPI and GPUs may still use their memory.
  void abort(const std::string& reason);
  /// The stopped batches, once nothing uses their memory any more; none before.
  LostBatches::Batches take_drained(Clock::time_point now) { return lost_.take_drained(now); }
  /// Whether there are any, or GPUs are still stopping theirs.
  bool has_stopped_batches() const {
    return !lost_.empty() || (device_runner_ != nullptr && device_runner_->is_aborting());
  }

  Metrics::Bytes bytes() const;
  double gpu_seconds() { return device_runner_ == nullptr ? 0.0 : device_runner_->seconds(); }

 private:
  /// When a batch that starts now is overdue: at its deadline, and not within KOLO_LOST_AFTER.
  Clock::time_point overdue_at(Clock::time_point deadline) const {
    return std::max(deadline, later(Clock::now(), set_.longest_silence()));
  }
  bool is_launching() const { return device_runner_ != nullptr && device_runner_->is_launching(); }

  const SetContext& set_;
  std::shared_ptr<HostRunner> runner_;
  std::optional<SetContext> device_set_;
  std::shared_ptr<DeviceRunner> device_runner_;
  BatchQueue on_cpu_;
  BatchQueue on_gpu_;
  std::unique_ptr<PointToPoint> point_to_point_;  // null: the engine has ended
  LostBatches lost_;
};

}  // namespace kolo::runtime
