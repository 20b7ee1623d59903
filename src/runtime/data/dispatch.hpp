#pragma once

#include <vector>

#include "kolo/task.hpp"
#include "runtime/data/backend.hpp"
#include "runtime/data/data_path.hpp"
#include "runtime/data/operation.hpp"
#include "runtime/protocol/bits.hpp"

/// The one place that knows how each collective runs, whatever memory its tensors lie in.
namespace kolo::runtime {

/// Runs a batch: exchanges row counts, allocates outputs, and has `backend` move the elements.
/// Collective: one batch at a time, in the same order on all ranks.
/// @param batch operations that all ranks run together: several only if all are all-reduces
/// @param absent for each operation, the ranks that find_absent found; an empty set if no rank has
///   joined
/// @throws AgreedFailure on all ranks if the operation cannot run without the absent ones
Task dispatch(const DataPath& path, Backend& backend, const Operations& batch,
              const std::vector<Bits>& absent);

}  // namespace kolo::runtime
