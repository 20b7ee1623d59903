#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

namespace kolo::runtime {

/// Lets one thread sleep until another notifies it. A thread that is notified while awake does not
/// fall asleep at its next wait. Repeated notifications cost one atomic exchange each.
class WakeSignal {
 public:
  void notify() {
    if (is_notified_.exchange(true) || ignores_notifications_) return;
    const std::lock_guard lock(mutex_);
    notified_.notify_one();
  }

  /// Sleeps until notified, for `duration` at most; true if notified.
  bool wait_for(std::chrono::nanoseconds duration) {
    std::unique_lock lock(mutex_);
    notified_.wait_for(lock, duration, [&] { return is_notified_.load(); });
    return is_notified_.exchange(false);
  }

  /// Sleeps for `duration`, notified or not; true if notified.
  bool sleep_for(std::chrono::nanoseconds duration) {
    ignores_notifications_ = true;
    std::this_thread::sleep_for(duration);
    ignores_notifications_ = false;
    return is_notified_.exchange(false);
  }

 private:
  std::mutex mutex_;
  std::condition_variable notified_;
  std::atomic<bool> is_notified_{false};
  std::atomic<bool> ignores_notifications_{false};
};

}  // namespace kolo::runtime
