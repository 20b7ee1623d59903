#pragma once

#include <optional>
#include <string>
#include <vector>

#include <mpi.h>

#include "support/mpi/watchdog.hpp"

namespace kolo::test {

/// The ranks of an MPI test program among themselves, on an MPI communicator of their own, so that
/// nothing they say can match a test's messages. Made once, by main. All methods that return what
/// other ranks said are collective and note `place` for the watchdog.
///
/// Where the ranks of the program are in groups, they are this rank's group.
class MpiRanks {
 public:
  explicit MpiRanks(std::chrono::seconds longest_test);
  ~MpiRanks();
  MpiRanks(const MpiRanks&) = delete;  // there is one
  MpiRanks& operator=(const MpiRanks&) = delete;

  static MpiRanks& instance();
  /// Whether only the thread that started MPI may call it.
  static bool is_funneled();

  /// For InitOptions::communicator: these ranks, where they are not all of the program.
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
  MPI_Comm group_ = MPI_COMM_NULL;  // of the program's; Kolo's is a copy, and so is the next
  MPI_Comm communicator_ = MPI_COMM_NULL;
  int rank_ = 0;
  int size_ = 1;
  Watchdog watchdog_;
};

}  // namespace kolo::test
