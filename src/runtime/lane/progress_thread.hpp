#pragma once

#include <atomic>
#include <memory>
#include <thread>

#include "runtime/lane/lane.hpp"

namespace kolo::runtime {

/// The background thread of a lane: makes progress while no caller does, and sleeps while there is
/// nothing to do. While idle it makes one step every 50 ms, to answer requests of other ranks, and
/// one per millisecond while such requests arrive.
///
/// Every lane has its own thread: functions that the program runs inside an operation
/// (AllocateRows, a CustomReduction) may be slow, and must not delay other process sets.
class ProgressThread {
 public:
  explicit ProgressThread(std::shared_ptr<Lane> lane);
  /// Ends the thread after its current step; from then on only callers make progress.
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
