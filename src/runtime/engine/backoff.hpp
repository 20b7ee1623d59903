#pragma once

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "comm/topology.hpp"
#include "kolo/config.hpp"

namespace kolo::runtime {

/// How long callers of this rank spin. Where operations are matched by order, programs wait in the
/// middle of a step, many times and for less than a sleep may last: FSDP2 keeps .76 of a step of
/// ResNet-50 if they spin for 1 ms, .73 with 200 us, .66 with 20 us.
inline std::chrono::nanoseconds spin_of(const Config& config, const comm::Topology& topology,
                                        bool is_matched_by_order) {
  if (topology.shares_cores) return std::chrono::nanoseconds{0};
  const std::chrono::nanoseconds spin = config.tuning.spin;
  return is_matched_by_order
             ? std::max<std::chrono::nanoseconds>(spin, std::chrono::milliseconds(1))
             : spin;
}

/// How long a rank spins for an operation on its GPU, from which the GPU may be waiting for work. A
/// sleep takes longer than all else that a launch needs.
constexpr std::chrono::nanoseconds kLaunchSpin = std::chrono::milliseconds(1);

/// Polling with increasing pauses, for events that cannot wake the thread: it spins for a few
/// microseconds, then yields, then sleeps longer and longer. Waking up from a sleep costs tens of
/// microseconds; spinning takes a core from other threads. Sleeps beyond a millisecond stay a small
/// fraction of the time waited so far, so they add little to it.
class Backoff {
 public:
  using Duration = std::chrono::nanoseconds;
  static constexpr Duration kShortestSleep = std::chrono::microseconds(50);
  static constexpr Duration kLongestEarlySleep = std::chrono::milliseconds(1);
  static constexpr Duration kLongestSleep = std::chrono::milliseconds(5);
  static constexpr int kSleepDivisor = 32;

  explicit Backoff(Duration spin) : spin_(spin) {}

  /// Starts over, after progress.
  void reset() {
    began_ = {};
    sleep_ = kShortestSleep;
  }

  /// How long to sleep before polling again; zero: immediately. Yields when spinning has ended
  /// but sleeping has not begun.
  ///
  /// @param spin how long it spins at least
  Duration next_pause(Duration spin = Duration{0}) {
    const auto now = std::chrono::steady_clock::now();
    if (began_ == std::chrono::steady_clock::time_point{}) began_ = now;
    spin = std::max(spin, spin_);
    if (now - began_ < spin) return Duration{0};
    if (now - began_ < spin + kYieldTime) {
      std::this_thread::yield();
      return Duration{0};
    }
    const Duration longest =
        std::clamp<Duration>((now - began_) / kSleepDivisor, kLongestEarlySleep, kLongestSleep);
    return std::exchange(sleep_, std::min(2 * sleep_, longest));
  }

 private:
  static constexpr Duration kYieldTime = std::chrono::microseconds(50);

  Duration spin_;
  std::chrono::steady_clock::time_point began_{};
  Duration sleep_ = kShortestSleep;
};

}  // namespace kolo::runtime
