#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "kolo/config.hpp"
#include "runtime/lane.hpp"
#include "runtime/wake_up.hpp"

namespace kolo::runtime {

/// The background thread of a Runtime: drives every lane that no caller drives, one turn each in
/// turn, and sleeps when there is nothing to do. Idle it looks at every lane once in 50 ms, so that
/// a peer which asks is answered.
class ProgressThread {
 public:
  explicit ProgressThread(const Config& config) : config_(config) {}
  ~ProgressThread() { stop(); }
  ProgressThread(const ProgressThread&) = delete;  // its thread refers to it
  ProgressThread& operator=(const ProgressThread&) = delete;

  WakeUp& wake_up() { return wake_up_; }
  void start();
  /// Ends the thread after its current turn; lanes can then be driven by callers only.
  void stop();
  void add(std::shared_ptr<Lane> lane);

 private:
  void loop();

  const Config& config_;
  WakeUp wake_up_;
  std::mutex lanes_lock_;
  std::vector<std::shared_ptr<Lane>> lanes_;
  std::atomic<bool> is_stopping_{false};
  std::thread thread_;
};

}  // namespace kolo::runtime
