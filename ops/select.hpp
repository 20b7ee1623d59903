#pragma once

#include <cstddef>
#include <string_view>

#include "kolo/algorithm.hpp"
#include "ops/registry.hpp"

namespace kolo::ops {

/// Direct and pairwise exchange send as little as a ring in fewer steps, and direct ones keep the
/// rank order, until there are more ranks than this: so many pairs that talk at once are in each
/// other's way.
inline constexpr int kMostDirectRanks = 16;

/// What the choice of an algorithm depends on: facts that are the same on every rank of a call.
struct Situation {
  Collective collective = Collective::AllReduce;
  ReduceOp op = ReduceOp::Sum;  ///< all-reduce, reduce-scatter
  /// Of the buffer; all-gather: of all blocks; reduce-scatter: of the input; all-to-all: of a row.
  std::size_t bytes = 0;
  int size = 1;                   ///< ranks
  bool has_window = false;        ///< all ranks share a window
  bool has_peer_buffers = false;  ///< and the call has `peer_buffers`
  bool has_native = false;        ///< the communicator has NativeCollectives
  bool has_nodes = false;         ///< several nodes of as many ranks each, with a window in each
};

/// The algorithm for a call: the one named `wanted` if that is not empty and the call has what it
/// needs, else the fastest that fits. An override is thus a preference: "zero_copy" serves the
/// buffers that lie in shared memory, and all others run as if nothing had been asked for. Adasum,
/// which is no sum of elements, has an all-reduce of its own, and MPI knows no custom reductions.
///
/// A pure function, so that all ranks choose alike. Throws InvalidArgument, which names the
/// choices, for a name that is not in the registry.
const Algorithm& select(const Registry& registry, const Situation& situation,
                        std::string_view wanted = {});

}  // namespace kolo::ops
