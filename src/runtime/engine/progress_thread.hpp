#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <thread>
#include <utility>

#include "base/mutex.hpp"

namespace kolo::runtime {

/// Lets one thread sleep until another notifies it. A thread that is notified while awake does not
/// fall asleep at its next wait. Repeated notifications cost one atomic exchange each.
class WakeSignal {
 public:
  void notify() {
    if (is_notified_.exchange(true) || ignores_notifications_) return;
    const Lock lock(mutex_);
    notified_.notify_one();
  }

  /// Sleeps until notified, for `duration` at most; true if notified.
  bool wait_for(std::chrono::nanoseconds duration) {
    const Lock lock(mutex_);
    notified_.wait_for(mutex_, duration, [&] { return is_notified_.load(); });
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
  Mutex mutex_;
  std::condition_variable_any notified_;
  std::atomic<bool> is_notified_{false};
  std::atomic<bool> ignores_notifications_{false};
};

/// Makes progress in the background while no caller does, and sleeps while there is nothing to do.
/// While idle it makes one step every 50 ms, to answer requests of other ranks.
///
/// Every engine has its own thread: functions that the program runs inside an operation
/// (AllocateRows, a CustomReduction) may be slow, and must not delay other process sets.
class ProgressThread {
 public:
  /// Called on the thread.
  struct Work {
    std::function<bool()> try_progress;  ///< one step; true if something advanced
    std::function<bool()> is_needed;     ///< something is in flight, and no caller makes progress
    std::function<std::chrono::nanoseconds()> spin;  ///< how long to poll before it sleeps
  };

  explicit ProgressThread(Work work) : work_(std::move(work)) {}
  ~ProgressThread() { stop(); }
  ProgressThread(const ProgressThread&) = delete;  // its thread refers to it
  ProgressThread& operator=(const ProgressThread&) = delete;

  /// Throws std::system_error if the system has no thread for it.
  void start();
  /// There is something to do. Any thread.
  void notify() { wake_signal_.notify(); }
  /// Ends the thread after its current step; from then on only callers make progress. Any thread,
  /// also several at once: each call returns once it has ended.
  void stop();

 private:
  void loop();

  const Work work_;
  WakeSignal wake_signal_;
  std::atomic<bool> is_stopping_{false};
  Mutex lock_;
  std::thread thread_ KOLO_GUARDED_BY(lock_);
};

}  // namespace kolo::runtime
