#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace kolo::test {

/// Checks that ranks launch the operations of overlapping communicators in orders that go together,
/// as NCCL asks: with GPUs that run one operation at a time, each in the order of its launches, all
/// must run. Otherwise an operation may wait forever for a GPU that another one occupies.
class LaunchOrder {
 public:
  /// Communicators are numbered from 0.
  void join(std::size_t communicator, int rank);
  /// The next operation of `communicator` on `rank`.
  void launch(std::size_t communicator, int rank);
  /// Ignores a communicator from now on: after an abort its ranks may have launched different
  /// operations.
  void forget(std::size_t communicator);
  /// Describes two operations that all their ranks have launched, one of which cannot run behind
  /// the other; empty: none.
  std::string find_stuck() const;

 private:
  /// A communicator, and how many of its operations come before.
  using Operation = std::pair<std::size_t, std::size_t>;
  struct Communicator {
    std::map<int, std::size_t> launched;  // by rank
    bool is_forgotten = false;
  };

  /// Whether all ranks of the operation have run what they launched before.
  bool can_run(const Operation& operation) const;
  void run();

  std::vector<Communicator> communicators_;
  std::map<int, std::deque<Operation>> waiting_;  // by rank
};

}  // namespace kolo::test
