#pragma once

#include <cstddef>

#include "kolo/algorithm.hpp"
#include "ops/registry.hpp"

namespace kolo::ops {

/// Up to this many ranks, direct and pairwise exchange are preferred to a ring: they send as few
/// bytes in fewer steps, and direct ones combine in rank order. With more ranks, so many concurrent
/// pairs slow each other down.
inline constexpr int kMaxDirectRanks = 16;

/// The facts that determine the choice of an algorithm; the same on every rank of a call.
struct Situation {
  Collective collective = Collective::AllReduce;
  ReduceOp op = ReduceOp::Sum;  ///< all-reduce, reduce-scatter
  /// Of the buffer; all-gather: of all blocks; reduce-scatter: of the input; all-to-all: of a row.
  std::size_t bytes = 0;
  int size = 1;                   ///< ranks
  bool has_window = false;        ///< all ranks share a window
  bool has_peer_buffers = false;  ///< and the call has `peer_buffers`
  bool has_nodes = false;         ///< several nodes with equally many ranks, and a window in each
  bool shares_output = false;     ///< all-gather: of the ranks of a node; only with `has_nodes`
};

/// Selects the algorithm of a call: the registry's preferred one, if there is one and its needs are
/// met, otherwise the fastest one. "zero_copy" thus applies to buffers in shared memory, and has no
/// effect on others. Adasum has its own all-reduce, and only one algorithm supports a shared
/// output.
///
/// A pure function, so that all ranks select the same algorithm. Throws InvalidArgument for
/// collectives that have no algorithms.
const Algorithm& select(const Registry& registry, const Situation& situation);

}  // namespace kolo::ops
