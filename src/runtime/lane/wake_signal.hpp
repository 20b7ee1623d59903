#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

namespace kolo::runtime {

/// A thread's bed: it sleeps here, and others wake it. A call while it is awake costs one load; it
/// keeps the thread from falling asleep next.
class WakeSignal {
 public:
  void notify() {
    if (is_called_.exchange(true) || is_dozing_) return;
    const std::lock_guard lock(mutex_);
    called_.notify_one();
  }

  /// Sleeps until called, or for `duration`; true if called.
  bool wait_for(std::chrono::nanoseconds duration) {
    std::unique_lock lock(mutex_);
    called_.wait_for(lock, duration, [&] { return is_called_.load(); });
    return is_called_.exchange(false);
  }

  /// Sleeps for `duration`, whoever calls; true if called.
  bool sleep_for(std::chrono::nanoseconds duration) {
    is_dozing_ = true;
    std::this_thread::sleep_for(duration);
    is_dozing_ = false;
    return is_called_.exchange(false);
  }

 private:
  std::mutex mutex_;
  std::condition_variable called_;
  std::atomic<bool> is_called_{false};
  std::atomic<bool> is_dozing_{false};
};

}  // namespace kolo::runtime
