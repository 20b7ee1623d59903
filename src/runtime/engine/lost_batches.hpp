#pragma once

#include <chrono>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "comm/world.hpp"
#include "runtime/data/set_context.hpp"
#include "runtime/engine/batch_queue.hpp"

namespace kolo::runtime {

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

}  // namespace kolo::runtime
