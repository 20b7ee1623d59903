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

/// What the ranks of one program are doing, and what went wrong. Any thread.
class Watch {
 public:
  enum class Doing { Starting, Submitting, Waiting, Meeting, Ended };

  /// Where `trace` is not null, all that happens is written there too.
  explicit Watch(const Program& program, std::ostream* trace = nullptr);

  void note(int rank, int round, Doing doing, int operation = -1);
  void fail(int rank, const std::string& text);

  /// What each rank does now, a line each; or one.
  std::string state() const;
  std::string state(int rank) const;
  /// "" where nothing went wrong.
  std::string failures() const;

 private:
  struct Place {
    std::atomic<int> round{0};
    std::atomic<Doing> doing{Doing::Starting};
    std::atomic<int> operation{-1};
  };

  const Program& program_;
  std::ostream* trace_;
  std::vector<Place> places_;
  mutable std::mutex lock_;
  std::string failures_;
  int failure_count_ = 0;
};

/// Calls `report` if it lives for longer than `limit`: a hang leaves evidence.
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
