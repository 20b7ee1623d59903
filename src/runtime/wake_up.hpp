#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>

namespace kolo::runtime {

/// A thread's bed: it sleeps here, and others wake it. A call while it is awake costs one load; it
/// keeps the thread from falling asleep next.
class WakeUp {
 public:
  void call() {
    if (is_called_.exchange(true)) return;
    const std::lock_guard lock(mutex_);
    called_.notify_one();
  }

  /// Sleeps until called, or for `duration`.
  void sleep(std::chrono::nanoseconds duration) {
    std::unique_lock lock(mutex_);
    called_.wait_for(lock, duration, [&] { return is_called_.load(); });
    is_called_ = false;
  }

 private:
  std::mutex mutex_;
  std::condition_variable called_;
  std::atomic<bool> is_called_{false};
};

}  // namespace kolo::runtime
