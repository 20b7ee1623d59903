#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <ostream>
#include <string>
#include <thread>
#include <vector>

#include "programs/program.hpp"

namespace kolo::programs {

/// The activities of a program's ranks, and their failures. Thread-safe.
class Watch {
 public:
  enum class Activity { Starting, Submitting, Waiting, BlockingCall, Ended };

  /// If `trace` is not null, every event is written to it.
  explicit Watch(const Program& program, std::ostream* trace = nullptr);

  void note(int rank, int round, Activity activity, int operation = -1);
  void fail(int rank, const std::string& text);

  /// The current activity of each rank, one per line; or of one rank.
  std::string state() const;
  std::string state(int rank) const;
  /// Empty if nothing went wrong.
  std::string failures() const;

 private:
  struct Place {
    std::atomic<int> round{0};
    std::atomic<Activity> activity{Activity::Starting};
    std::atomic<int> operation{-1};
  };

  const Program& program_;
  std::ostream* trace_;
  std::vector<Place> places_;
  mutable std::mutex lock_;
  std::string failures_;
  int failure_count_ = 0;
};

/// Calls `report` if this object lives longer than `limit`, so that a hang leaves evidence.
class Alarm {
 public:
  Alarm(std::chrono::seconds limit, std::function<void()> report);
  ~Alarm();
  Alarm(const Alarm&) = delete;  // its thread refers to it
  Alarm& operator=(const Alarm&) = delete;

 private:
  std::mutex lock_;
  std::condition_variable ended_;
  bool is_ended_ = false;
  std::thread thread_;
};

}  // namespace kolo::programs
