#pragma once

#include <algorithm>
#include <chrono>
#include <thread>
#include <unistd.h>
#include <utility>

#include "comm/topology.hpp"
#include "kolo/config.hpp"

namespace kolo::runtime {

/// How long callers spin on this node: not at all where its ranks must share cores, since whoever
/// spins then keeps those from running that it waits for.
inline std::chrono::nanoseconds spin_of(const Config& config, const comm::Topology& topology) {
  const int ranks = config.fake_nodes > 0 ? topology.size : topology.local_size;
  return ranks > ::sysconf(_SC_NPROCESSORS_ONLN) ? std::chrono::nanoseconds{0} : config.spin;
}

/// How a thread waits for what others do when nobody can wake it: it looks again at once for a few
/// microseconds, then lets others run, then sleeps longer and longer. A wake-up from sleep costs
/// tens of microseconds, a spinning thread costs its neighbour the core. Sleeps beyond a
/// millisecond stay a small part of the time waited so far, so that they hardly add to it.
class Backoff {
 public:
  using Duration = std::chrono::nanoseconds;
  static constexpr Duration kShortestSleep = std::chrono::microseconds(50);
  static constexpr Duration kLongestEarlySleep = std::chrono::milliseconds(1);
  static constexpr Duration kLongestSleep = std::chrono::milliseconds(5);
  static constexpr int kPartOfWait = 32;

  explicit Backoff(Duration spin) : spin_(spin) {}

  /// There was progress: starts over.
  void reset() {
    began_ = {};
    sleep_ = kShortestSleep;
  }

  /// How long to sleep before the next look; zero: not yet. Lets others run then, once past
  /// spinning.
  Duration next_pause() {
    const auto now = std::chrono::steady_clock::now();
    if (began_ == std::chrono::steady_clock::time_point{}) began_ = now;
    if (now - began_ < spin_) return Duration{0};
    if (now - began_ < spin_ + kYielding) {
      std::this_thread::yield();
      return Duration{0};
    }
    const Duration longest =
        std::clamp<Duration>((now - began_) / kPartOfWait, kLongestEarlySleep, kLongestSleep);
    return std::exchange(sleep_, std::min(2 * sleep_, longest));
  }

 private:
  static constexpr Duration kYielding = std::chrono::microseconds(50);

  Duration spin_;
  std::chrono::steady_clock::time_point began_{};
  Duration sleep_ = kShortestSleep;
};

}  // namespace kolo::runtime
