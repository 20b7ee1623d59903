#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "kolo/algorithm.hpp"
#include "kolo/task.hpp"
#include "runtime/data/operation.hpp"
#include "runtime/protocol/request.hpp"

namespace kolo::runtime {

/// One tensor to be reduced.
struct ReductionItem {
  const TensorType* type;
  TensorMemory* memory;
};

/// Ranks that have joined and contribute the identity.
struct JoinedRanks {
  int count = 0;
  bool is_here = false;  ///< this rank is one of them
};

/// @return the divisor of an average over a process set of `size` ranks
inline int divisor_of(const Request& request, JoinedRanks joined, int size) {
  return request.join_divisor == JoinDivisor::Active ? size - joined.count : size;
}

/// @return how many of `items` are fused: the first and those that follow it, as long as they have
///         its dtype and at most `limit_bytes` in total
inline std::size_t fused_run(std::span<const ReductionItem> items, std::size_t limit_bytes) {
  std::size_t length = 1;
  std::size_t bytes = items[0].type->size_bytes();
  while (length < items.size() && items[length].type->dtype == items[0].type->dtype &&
         bytes + items[length].type->size_bytes() <= limit_bytes) {
    bytes += items[length++].type->size_bytes();
  }
  return length;
}

/// Tensors of a batch that are reduced alike.
struct Reductions {
  const Request* request;
  JoinedRanks joined;
  std::vector<ReductionItem> items{};
  /// Reduce-scatter: for each item, the elements that each rank keeps. All-reduce: none; small
  /// neighbours of one dtype are fused.
  std::vector<std::vector<std::size_t>> counts{};
};

/// An all-gather, a broadcast or an all-to-all of one tensor.
struct Move {
  CollectiveCall call;
  std::size_t bytes;  ///< determines the algorithm; the same on all ranks
};

/// Moves and combines the elements of an engine's tensors in one kind of memory: the host's or a
/// GPU's. dispatch() decides what is moved; a new collective that combines nothing is a case there
/// and in DeviceBackend::move.
///
/// On the host, a Task ends when the results are complete; on a GPU, when the work is on the
/// stream. Arguments passed by reference live until then.
class Backend {
 public:
  virtual ~Backend() = default;

  /// Collective: allocates what reduce() needs beside the tensors. Throws AgreedFailure if a rank
  /// has no memory left.
  virtual Task make_room(std::span<const Reductions> reductions) = 0;
  /// Reduces what make_room() was called with.
  virtual Task reduce(std::span<const Reductions> reductions) = 0;

  /// Runs all-gathers, broadcasts or all-to-alls, which use different memory.
  virtual Task move(Collective collective, std::span<const Move> moves) = 0;

  /// Whether await_allocation() is possible: not while its stream is captured into a graph.
  virtual bool may_allocate(const Operation& operation) = 0;
  /// Makes later work wait until an output that was just allocated for `operation` may be written.
  virtual void await_allocation(const Operation& operation) = 0;
};

}  // namespace kolo::runtime
