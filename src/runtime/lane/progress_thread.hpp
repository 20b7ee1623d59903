#pragma once

#include <atomic>
#include <memory>
#include <thread>

#include "runtime/lane/lane.hpp"

namespace kolo::runtime {

/// The background thread of a lane: drives it while no caller does, and sleeps when there is
/// nothing to do. Idle it takes a look once in 50 ms, so that a peer which asks is answered.
///
/// Every lane has its own: what a program runs inside an operation (AllocateRows, a
/// CustomReduction) may take its time, and must not hold other process sets.
class ProgressThread {
 public:
  explicit ProgressThread(std::shared_ptr<Lane> lane);
  /// Ends the thread after its current turn; the lane can then be driven by callers only.
  ~ProgressThread();
  ProgressThread(const ProgressThread&) = delete;  // its thread refers to it
  ProgressThread& operator=(const ProgressThread&) = delete;

 private:
  void loop();

  std::shared_ptr<Lane> lane_;
  std::atomic<bool> is_stopping_{false};
  std::thread thread_;
};

}  // namespace kolo::runtime
