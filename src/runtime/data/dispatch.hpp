#pragma once

#include <cstddef>
#include <vector>

#include "kolo/task.hpp"
#include "runtime/data/backend.hpp"
#include "runtime/data/operation.hpp"
#include "runtime/data/set_context.hpp"
#include "runtime/protocol/bits.hpp"

/// The one place that decides how each collective runs, for any memory of its tensors.
namespace kolo::runtime {

/// Rows of one tensor, by rank. Empty if the ranks need not exchange them.
struct TensorRows {
  std::vector<std::size_t> sent{};  ///< all-to-all: by this rank
  std::vector<std::size_t> received{};
};

/// What make_room() leaves for dispatch().
struct BatchPlan {
  std::vector<TensorRows> rows{};        ///< of the first operation's tensors
  std::vector<Reductions> reductions{};  ///< refer to the batch
};

/// The first part of a batch: exchanges row counts, has the program allocate outputs, in functions
/// that may take any time, and has the backend allocate what it needs. Collective, as dispatch().
/// @param absent for each operation, the ranks that find_absent found; an empty set if no rank has
///   joined
/// @throws AgreedFailure on all ranks if the operation cannot run: without the absent ones, or
///   since a rank has no memory left
Task make_room(const SetContext& set, Backend& backend, const Operations& batch,
               const std::vector<Bits>& absent, BatchPlan& plan);

/// The second part: has `backend` move the elements. Nothing that ranks agree on fails any more.
/// Collective: one batch at a time, in the same order on all ranks.
/// @param batch operations that all ranks run together: several only if all are all-reduces
/// @param plan as make_room() left it
Task dispatch(const SetContext& set, Backend& backend, const Operations& batch,
              const std::vector<Bits>& absent, const BatchPlan& plan);

}  // namespace kolo::runtime
