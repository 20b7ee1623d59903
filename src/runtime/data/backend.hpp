#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "kolo/algorithm.hpp"
#include "kolo/task.hpp"
#include "runtime/data/operation.hpp"
#include "runtime/data/reduction_items.hpp"
#include "runtime/protocol/request.hpp"

namespace kolo::runtime {

/// An all-gather, a broadcast or an all-to-all of one tensor.
struct Move {
  CollectiveCall call;
  std::size_t bytes;  ///< determines the algorithm; the same on all ranks
};

/// Moves and combines the elements of a lane's tensors in one kind of memory: the host's or a
/// GPU's. dispatch() decides what is moved; a new collective that combines nothing is a case there
/// and in DeviceBackend::move.
///
/// On the host, a Task ends when the results are complete; on a GPU, when the work is on the
/// stream. Arguments passed by reference live until then.
class Backend {
 public:
  virtual ~Backend() = default;

  /// All-reduces `items` as `request` says. Small neighbours of one dtype are fused.
  virtual Task all_reduce(const Request& request, std::span<const ReductionItem> items,
                          JoinedRanks joined) = 0;

  /// Combines each of `items`; every rank keeps its part.
  /// @param counts elements that each rank keeps, for each item
  virtual Task reduce_scatter(const Request& request, std::span<const ReductionItem> items,
                              std::span<const std::vector<std::size_t>> counts,
                              JoinedRanks joined) = 0;

  /// Runs all-gathers, broadcasts or all-to-alls, which use different memory.
  virtual Task move(Collective collective, std::span<const Move> moves) = 0;

  /// Makes later work wait until an output that was just allocated for `operation` may be written.
  virtual void await_allocation(const Operation& operation) = 0;
};

}  // namespace kolo::runtime
