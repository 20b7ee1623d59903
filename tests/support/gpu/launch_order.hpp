#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace kolo::test {

/// Whether all ranks launch the operations of communicators that overlap in one order. Two
/// operations that two ranks launch in different order are under way at the same time: each ends
/// only after both ranks have launched both. They may then wait for each other for ever, each for a
/// rank whose GPU is taken by the other.
class LaunchOrder {
 public:
  /// Communicators are numbered from 0, by their first ranks.
  void join(std::size_t communicator, int rank);
  /// The next operation of `communicator` on `rank`. A text where the order was another one on
  /// another rank; otherwise empty.
  std::string launch(std::size_t communicator, int rank);
  /// Looks at a communicator no more: after an abort its ranks have not launched the same.
  void forget(std::size_t communicator);

 private:
  /// How many operations of each communicator a rank had launched before.
  struct Before {
    int rank;
    std::vector<std::size_t> launched;
  };
  struct Communicator {
    std::map<int, std::size_t> launched;                    // by rank
    std::map<std::size_t, std::vector<Before>> operations;  // that not all ranks have launched yet
    bool is_forgotten = false;
  };

  bool is_shared(const Communicator& communicator, int one, int other) const;

  std::vector<Communicator> communicators_;
};

}  // namespace kolo::test
