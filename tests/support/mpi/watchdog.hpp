#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

namespace kolo::test {

/// Ends the whole job when one test runs too long, and reports on this rank which test it was and
/// where it last met the other ranks, so that a hang leaves evidence.
class Watchdog {
 public:
  /// `limit` applies to each test; the job ends through MPI_Abort.
  Watchdog(std::string who, std::chrono::seconds limit);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;  // its thread refers to it
  Watchdog& operator=(const Watchdog&) = delete;

  void begin(const std::string& test);
  void end();
  /// Records where this rank now meets the others.
  void note(const std::string& place);

 private:
  using Clock = std::chrono::steady_clock;

  void loop();

  const std::string who_;
  const std::chrono::seconds limit_;
  std::mutex lock_;
  std::condition_variable changed_;
  std::string test_;
  std::string place_;
  Clock::time_point until_ = Clock::time_point::max();
  bool is_stopping_ = false;
  std::thread thread_;
};

}  // namespace kolo::test
