#pragma once

#include <chrono>
#include <deque>
#include <optional>
#include <vector>

#include "comm/world.hpp"
#include "runtime/data/data_path.hpp"
#include "runtime/lane/batch_queue.hpp"

namespace kolo::runtime {

/// The batches that the loss of a rank has stopped, until nothing uses their memory: ranks that are
/// still alive may be sending into it or reading from it. Cancels their receives, and completes the
/// transfers that cannot be cancelled. That takes kMaxDrainTime at most; after that, only a rank
/// that is alive but does not answer could still send the rest of a message.
class LostBatches {
 public:
  using Clock = BatchQueue::Clock;
  using Batches = std::deque<BatchQueue::Batch>;

  static constexpr auto kMaxDrainTime = std::chrono::milliseconds(500);
  /// What a dead rank has sent arrives within this time, or never.
  static constexpr auto kDeadRankDelay = std::chrono::milliseconds(50);

  /// `path` is the one that the batches use. Both outlive this object.
  LostBatches(const DataPath& path, comm::World& world) : path_(path), world_(world) {}

  void add(Batches batches);
  bool empty() const { return batches_.empty(); }

  /// All batches, once nothing uses their memory; none before. Never blocks.
  Batches take_drained(Clock::time_point now);

 private:
  bool is_drained(Clock::duration waited);
  bool is_alive(int rank, const std::vector<int>& dead) const;

  const DataPath& path_;
  comm::World& world_;
  Batches batches_;
  std::optional<Clock::time_point> since_;
};

}  // namespace kolo::runtime
