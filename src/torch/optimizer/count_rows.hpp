#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kolo/handle.hpp"
#include "kolo/process_set.hpp"

namespace kolo::tensors {

/// A problem with the arguments of DistributedOptimizer::backward().
enum class CountProblem : std::int64_t { None, NegativeCount, UndefinedLoss, DetachedLoss };

/// A rank's row about the counted passes of its step; all zero on a joined rank.
struct CountRow {
  std::int64_t count = 0;
  std::int64_t is_active = 0;
  std::int64_t has_counted = 0;
  std::int64_t has_uncounted = 0;
  CountProblem problem = CountProblem::None;
  std::int64_t wrong_count = 0;  ///< the count of the call with the problem
};

/// The rows of all ranks, gathered with a sum to which joined ranks contribute zeros.
class CountRows {
 public:
  /// This rank's row alone.
  CountRows(const CountRow& own, ProcessSet& set);
  /// Starts gathering all rows under `name`. Collective over the set, and does not block.
  CountRows(const CountRow& own, ProcessSet& set, const std::string& name);

  void wait() { handle_.wait(); }
  std::int64_t total() const;
  int active_ranks() const;
  /// Throws InvalidArgument, naming the ranks, if rows are inconsistent.
  void require_consistent() const;

 private:
  std::string ranks_with(std::int64_t CountRow::* column) const;

  ProcessSet& set_;
  std::shared_ptr<std::vector<CountRow>> rows_;
  Handle handle_;
};

}  // namespace kolo::tensors
