#pragma once

#include <chrono>
#include <deque>
#include <optional>
#include <vector>

#include "comm/world.hpp"
#include "runtime/data/data_path.hpp"
#include "runtime/lane/batch_queue.hpp"

namespace kolo::runtime {

/// The batches that the loss of a rank has stopped, until their memory is at rest: messages may be
/// under way into it, or be read from it, between ranks that still live. It gives up their
/// receives, and drives what cannot be given up to its end. That takes no longer than kLongestRest,
/// after which only a rank that lives and does not answer could still send the rest of a message.
class LostBatches {
 public:
  using Clock = BatchQueue::Clock;
  using Batches = std::deque<BatchQueue::Batch>;

  static constexpr auto kLongestRest = std::chrono::milliseconds(500);
  /// What a dead rank has sent has been received by then, or never will be.
  static constexpr auto kRestOfTheDead = std::chrono::milliseconds(50);

  /// `path` is that on which the batches moved. Both outlive this.
  LostBatches(const DataPath& path, comm::World& world) : path_(path), world_(world) {}

  void add(Batches batches);
  bool empty() const { return batches_.empty(); }

  /// All batches once their memory is at rest; none before. Never blocks.
  Batches take_rested(Clock::time_point now);

 private:
  bool is_at_rest(Clock::duration waited);
  bool lives(int rank, const std::vector<int>& dead) const;

  const DataPath& path_;
  comm::World& world_;
  Batches batches_;
  std::optional<Clock::time_point> since_;
};

}  // namespace kolo::runtime
