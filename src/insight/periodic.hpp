#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <thread>

#include "base/mutex.hpp"

namespace kolo::insight {

/// A thread that calls a function soon, then after each interval, and once more at the end.
class Periodic {
 public:
  /// @param function must not throw; returns whether to go on
  Periodic(std::chrono::milliseconds interval, std::function<bool(bool is_last)> function);
  /// Waits for the last call.
  ~Periodic();
  Periodic(const Periodic&) = delete;  // its thread refers to it
  Periodic& operator=(const Periodic&) = delete;

 private:
  void loop();

  const std::chrono::milliseconds interval_;
  const std::function<bool(bool)> function_;
  Mutex lock_;
  std::condition_variable_any stopped_;
  bool is_stopping_ KOLO_GUARDED_BY(lock_) = false;
  std::thread thread_;  // the last member: uses the others
};

}  // namespace kolo::insight
