#pragma once

#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

namespace kolo::runtime {

/// Numbers the batches of all process sets, from 1 on. Not thread-safe.
class LaunchTickets {
 public:
  using Numbers = std::vector<std::uint64_t>;

  /// Numbers the next batch of a set.
  ///
  /// @param members the set's world ranks
  /// @return for each member the number of its previous batch, after which it may launch this one
  ///   (0: there is none); at the end the number of this batch
  Numbers next(const Numbers& members) {
    Numbers numbers;
    ++last_;
    for (const std::uint64_t member : members) {
      numbers.push_back(std::exchange(last_of_rank_[member], last_));
    }
    numbers.push_back(last_);
    return numbers;
  }

 private:
  std::uint64_t last_ = 0;
  std::unordered_map<std::uint64_t, std::uint64_t> last_of_rank_;
};

}  // namespace kolo::runtime
