#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <thread>
#include <utility>
#include <vector>

#include "kolo/communicator.hpp"

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
  void send();

  const std::unique_ptr<Communicator> communicator_;
  const std::chrono::nanoseconds interval_;
  std::mutex mutex_;  // for the communicator too
  std::condition_variable_any wake_up_;
  bool is_postponed_ = false;
  std::map<int, Transfer> outgoing_;  // by neighbour
  std::optional<std::pair<int, Transfer>> incoming_;
  std::map<int, std::uint64_t> received_;
  std::jthread thread_;  // the last member: uses the others
};

}  // namespace kolo::runtime
