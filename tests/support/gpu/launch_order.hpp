#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace kolo::test {

/// Checks that all ranks launch the operations of overlapping communicators in one order. If two
/// ranks launch two operations in opposite orders, each operation needs both GPUs and may wait
/// forever for one that the other operation occupies: a deadlock.
class LaunchOrder {
 public:
  /// Communicators are numbered from 0.
  void join(std::size_t communicator, int rank);
  /// Records the next operation of `communicator` on `rank`. Returns an error text if another rank
  /// used a different order, otherwise an empty string.
  std::string launch(std::size_t communicator, int rank);
  /// Ignores a communicator from now on: after an abort its ranks may have launched different
  /// operations.
  void forget(std::size_t communicator);

 private:
  /// How many operations of each communicator a rank had launched before.
  struct Before {
    int rank;
    std::vector<std::size_t> launched;
  };
  struct Communicator {
    std::map<int, std::size_t> launched;                    // by rank
    std::map<std::size_t, std::vector<Before>> operations;  // not yet launched by all ranks
    bool is_forgotten = false;
  };

  bool is_shared(const Communicator& communicator, int one, int other) const;

  std::vector<Communicator> communicators_;
};

}  // namespace kolo::test
