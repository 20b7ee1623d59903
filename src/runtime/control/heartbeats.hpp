#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "comm/topology.hpp"
#include "runtime/control/tree_header_exchange.hpp"
#include "runtime/data/data_path.hpp"

namespace kolo::runtime {

/// Notices hosts that vanish, however long the ranks compute or sleep: the lowest ranks of the
/// nodes are joined in a tree, and neighbours in it send each other a heartbeat four times in
/// KOLO_LOST_AFTER. All other ranks send nothing: processes of their own host are watched.
class Heartbeats {
 public:
  using Clock = std::chrono::steady_clock;
  using Loss = HeaderExchange::Loss;

  /// Less than this says nothing: an idle rank makes a progress step every 50 ms.
  static constexpr std::chrono::nanoseconds kShortestLimit = std::chrono::seconds(1);

  /// `rank` counts within the set. The arguments outlive this object.
  Heartbeats(int rank, const DataPath& set, const comm::Topology& world,
             TreeHeaderExchange& header_exchange);

  /// Sends what is due. A neighbour from which nothing has come for KOLO_LOST_AFTER is a loss.
  std::optional<Loss> check(Clock::time_point now);

 private:
  struct Neighbour {
    int rank;
    std::uint64_t messages = 0;
    std::chrono::nanoseconds silence{0};
  };

  void listen(Neighbour& neighbour, std::chrono::nanoseconds waited);
  Loss describe(int rank) const;
  std::string host_of(int rank) const;

  const DataPath& set_;
  const comm::Topology& world_;
  TreeHeaderExchange& header_exchange_;
  const std::chrono::nanoseconds limit_;
  std::vector<Neighbour> neighbours_;
  std::optional<Clock::time_point> last_check_;
  Clock::time_point next_heartbeat_{};
};

}  // namespace kolo::runtime
