#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <exception>

#include "kolo/task.hpp"
#include "runtime/data/operation.hpp"

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

}  // namespace kolo::runtime
