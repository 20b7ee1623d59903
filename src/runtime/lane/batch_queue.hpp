#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <vector>

#include "kolo/task.hpp"
#include "runtime/data/operation.hpp"

namespace kolo::runtime {

/// Batches in the agreed order, of which the first one moves.
class BatchQueue {
 public:
  using Clock = Operation::Clock;
  using Operations = std::vector<std::shared_ptr<Operation>>;
  struct Batch {
    Task task;
    Operations operations;
    Clock::time_point deadline;
  };
  /// `operations` are those that ended, with `error` or well.
  struct Step {
    bool has_progressed = false;
    Operations operations{};
    std::exception_ptr error{};
  };
  /// Awaitable: so many batches have ended.
  struct Place {
    const BatchQueue& queue;
    std::uint64_t awaited;

    bool ready() const { return queue.ended_ >= awaited; }
  };

  void push(Batch batch);
  bool empty() const { return batches_.empty(); }

  /// Moves the first batch by some chunks at most, until it has waited at `looks` looks. Throws
  /// what no rank but this one knows of; an AgreedFailure ends the batch.
  Step advance(int looks);
  /// The first batch's deadline has been over for `grace`, and has not been told so as long.
  bool is_overdue(Clock::time_point now, std::chrono::nanoseconds grace);
  /// Behind what has been pushed so far. Refers to the queue.
  Place behind() const { return {*this, begun_}; }

  /// What has not ended.
  std::deque<Batch> take_all();

 private:
  std::deque<Batch> batches_;
  std::uint64_t begun_ = 0;
  std::uint64_t ended_ = 0;
};

}  // namespace kolo::runtime
