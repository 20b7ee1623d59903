#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <mpi.h>

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

/// Communication among the ranks of an MPI test program, on its own MPI communicator, so that its
/// messages cannot match those of a test. Created once, by main. All methods that return data of
/// other ranks are collective, and report `place` to the watchdog.
///
/// If the program's ranks are in groups, these are the ranks of this rank's group.
class MpiRanks {
 public:
  explicit MpiRanks(std::chrono::seconds longest_test);
  ~MpiRanks();
  MpiRanks(const MpiRanks&) = delete;  // there is one
  MpiRanks& operator=(const MpiRanks&) = delete;

  static MpiRanks& instance();

  /// For InitOptions::communicator: this rank's group, if it is not the whole program.
  std::optional<int> group() const;
  int rank() const { return rank_; }
  int size() const { return size_; }
  /// "[rank 1/4] "
  std::string prefix() const;
  Watchdog& watchdog() { return watchdog_; }

  /// `value` of every rank.
  std::vector<int> gather(int value, const std::string& place);
  /// `text` of every rank, on rank 0; nothing elsewhere.
  std::vector<std::string> gather_on_first(const std::string& text, const std::string& place);
  /// The text of `root`, on all ranks.
  std::string broadcast(std::string text, int root, const std::string& place);

 private:
  MPI_Comm group_ = MPI_COMM_NULL;  // this rank's group; the next is a copy, as is Kolo's
  MPI_Comm communicator_ = MPI_COMM_NULL;
  int rank_ = 0;
  int size_ = 1;
  Watchdog watchdog_;
};

/// Starts an MPI collective and waits for it, without blocking MPI for Kolo's threads.
void mpi_wait(const std::function<void(MPI_Request*)>& start);

}  // namespace kolo::test
