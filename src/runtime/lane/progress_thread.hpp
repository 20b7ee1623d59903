#pragma once

#include <atomic>
#include <thread>

namespace kolo::runtime {

class Lane;

/// The background thread of a lane: makes progress while no caller does, and sleeps while there is
/// nothing to do. While idle it makes one step every 50 ms, to answer requests of other ranks, and
/// one per millisecond while such requests arrive.
///
/// Every lane has its own thread: functions that the program runs inside an operation
/// (AllocateRows, a CustomReduction) may be slow, and must not delay other process sets.
class ProgressThread {
 public:
  /// `lane` outlives it.
  explicit ProgressThread(Lane& lane);
  /// Ends the thread after its current step; from then on only callers make progress.
  ~ProgressThread();
  ProgressThread(const ProgressThread&) = delete;  // its thread refers to it
  ProgressThread& operator=(const ProgressThread&) = delete;

 private:
  void loop();

  Lane& lane_;
  std::atomic<bool> is_stopping_{false};
  std::thread thread_;
};

}  // namespace kolo::runtime
