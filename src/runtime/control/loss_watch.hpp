#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "comm/world.hpp"
#include "runtime/data/set_context.hpp"
#include "runtime/protocol/header_exchange.hpp"

namespace kolo::runtime {

/// Detects the loss of a rank of a process set: its process has ended, some rank has published the
/// loss, or its coordinator is silent. Ranks count within the set.
class LossWatch {
 public:
  using Clock = std::chrono::steady_clock;

  /// `report` tells the user of a loss. The other arguments outlive this object.
  LossWatch(const SetContext& set, comm::World& world, HeaderExchange& header_exchange,
            std::function<void(const LostRank&)> report)
      : set_(set), world_(world), header_exchange_(header_exchange), report_(std::move(report)) {}

  /// A loss, once it is time to act on it. `needs_peers`: something on this rank waits for others.
  std::optional<LostRank> check(Clock::time_point now, bool needs_peers);

  /// Announces a loss to the other ranks, and returns it once they have had time to learn of it.
  std::optional<LostRank> announce(const LostRank& lost, Clock::time_point now);

  /// A rank that was silent in the latest complete interval.
  std::optional<LostRank> find_silent() const;

  /// Tells the user of the loss, once.
  void report(const LostRank& lost);

 private:
  bool has_reached_all(const LostRank& lost, Clock::time_point now);
  std::optional<int> member(int world_rank) const;

  const SetContext& set_;
  comm::World& world_;
  HeaderExchange& header_exchange_;
  const std::function<void(const LostRank&)> report_;
  Clock::time_point next_check_{};
  Clock::time_point next_sample_{};
  std::vector<int> silent_;                    // in the latest complete interval
  std::optional<Clock::time_point> heard_at_;  // of a loss that a live rank has published
  std::optional<int> suspect_;                 // seen dead once, after this rank has left
  bool is_reported_ = false;
};

}  // namespace kolo::runtime
