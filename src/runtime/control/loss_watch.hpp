#pragma once

#include <chrono>
#include <optional>
#include <vector>

#include "comm/world.hpp"
#include "runtime/data/data_path.hpp"
#include "runtime/protocol/header_exchange.hpp"

namespace kolo::runtime {

/// Notices that a rank of a process set is lost: its process has ended, it or another has published
/// its loss, or its coordinator gives no sign of life. Ranks count within the set.
class LossWatch {
 public:
  using Clock = std::chrono::steady_clock;
  using Loss = HeaderExchange::Loss;

  /// All of them outlive this.
  LossWatch(const DataPath& set, comm::World& world, HeaderExchange& board)
      : set_(set), world_(world), header_exchange_(board) {}

  /// A loss, once it is time to act on it. `needs_peers`: something here waits for the others.
  std::optional<Loss> look(Clock::time_point now, bool needs_peers);

  /// A rank that did not answer through the last whole interval of samples.
  std::optional<Loss> find_silent() const;

  /// Logs the loss, once.
  void report(const Loss& loss);

 private:
  bool all_have_heard(const Loss& loss, Clock::time_point now);
  int world_rank(int rank) const { return set_.world_ranks[static_cast<std::size_t>(rank)]; }
  std::optional<int> member(int world_rank) const;

  const DataPath& set_;
  comm::World& world_;
  HeaderExchange& header_exchange_;
  Clock::time_point next_look_{};
  Clock::time_point next_sample_{};
  std::vector<int> silent_;                    // in the last interval between samples
  std::optional<Clock::time_point> heard_at_;  // of a loss from a rank that still lives
  bool is_reported_ = false;
};

}  // namespace kolo::runtime
