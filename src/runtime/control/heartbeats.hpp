#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/mutex.hpp"
#include "comm/topology.hpp"
#include "kolo/communicator.hpp"
#include "runtime/control/tree_header_exchange.hpp"
#include "runtime/data/set_context.hpp"
#include "runtime/protocol/header_exchange.hpp"

namespace kolo::runtime {

/// Sends heartbeats while none leaves the progress steps, since one of them takes long: a function
/// of the program runs inside it, or the system provides memory slowly. Such a rank is alive. While
/// steps are short, it sends nothing.
class HeartbeatThread {
 public:
  /// `communicator` has no other user. `interval`: between heartbeats.
  HeartbeatThread(std::unique_ptr<Communicator> communicator, const std::vector<int>& neighbours,
                  std::chrono::nanoseconds interval);
  HeartbeatThread(const HeartbeatThread&) = delete;  // its thread refers to it
  HeartbeatThread& operator=(const HeartbeatThread&) = delete;

  /// A step has sent heartbeats: none is due for an interval.
  void postpone();
  /// The number of heartbeats of this kind from a rank so far. Never blocks.
  std::uint64_t received_from(int rank);

 private:
  void loop(const std::stop_token& stop);
  void send() KOLO_REQUIRES(mutex_);

  const std::chrono::nanoseconds interval_;
  Mutex mutex_;
  std::condition_variable_any wake_up_;
  const std::unique_ptr<Communicator> communicator_ KOLO_PT_GUARDED_BY(mutex_);
  bool is_postponed_ KOLO_GUARDED_BY(mutex_) = false;
  std::map<int, Transfer> outgoing_ KOLO_GUARDED_BY(mutex_);  // by neighbour
  std::optional<std::pair<int, Transfer>> incoming_ KOLO_GUARDED_BY(mutex_);
  std::map<int, std::uint64_t> received_ KOLO_GUARDED_BY(mutex_);
  std::jthread thread_;  // the last member: uses the others
};

/// Detects hosts that vanish, even while ranks compute or sleep: the lowest ranks of the nodes form
/// a tree, and neighbours in it send each other a heartbeat four times in KOLO_LOST_AFTER. All
/// other ranks send nothing: processes of the same host are watched directly.
class Heartbeats {
 public:
  using Clock = std::chrono::steady_clock;

  /// A shorter limit would be meaningless: an idle rank makes a progress step every 50 ms.
  static constexpr std::chrono::nanoseconds kShortestLimit = std::chrono::seconds(1);

  /// `rank` counts within the set. `beside`: a communicator for heartbeats while a step takes long;
  /// null: none are sent then. The other arguments outlive this object.
  Heartbeats(int rank, const SetContext& set, const comm::Topology& world,
             TreeHeaderExchange& header_exchange, std::unique_ptr<Communicator> beside = nullptr);

  /// Call it in every progress step. Sends heartbeats that are due. A neighbour that was silent for
  /// KOLO_LOST_AFTER is a loss.
  std::optional<LostRank> check(Clock::time_point now);

 private:
  struct Neighbour {
    int rank;
    std::uint64_t messages = 0;
    std::chrono::nanoseconds silence{0};
  };

  void listen(Neighbour& neighbour, std::chrono::nanoseconds waited);
  std::uint64_t messages_from(int rank);
  LostRank describe(int rank) const;
  std::string host_of(int rank) const;

  const SetContext& set_;
  const comm::Topology& world_;
  TreeHeaderExchange& header_exchange_;
  const std::chrono::nanoseconds limit_;
  std::vector<Neighbour> neighbours_;
  std::unique_ptr<HeartbeatThread> thread_;
  std::optional<Clock::time_point> last_check_;
  Clock::time_point next_heartbeat_{};
};

}  // namespace kolo::runtime
