#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/deadline.hpp"
#include "comm/world.hpp"
#include "kolo/metrics.hpp"
#include "runtime/data/host_runner.hpp"
#include "runtime/data/operation.hpp"
#include "runtime/data/point_to_point.hpp"
#include "runtime/data/set_context.hpp"
#include "runtime/device/device_runner.hpp"
#include "runtime/engine/batch_queue.hpp"
#include "runtime/engine/lost_batches.hpp"

namespace kolo::runtime {

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
