#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kolo/collectives.hpp"
#include "kolo/process_set.hpp"
#include "kolo/tensor_view.hpp"
#include "runtime/data/memory_overlap.hpp"
#include "runtime/data/operation.hpp"

/// Checks this rank's arguments to a collective. Each check records problems in the request,
/// through which all ranks learn of them.
namespace kolo::runtime {

/// Records why the arguments are invalid; only the first reason is kept.
void add_invalid_reason(Operation& operation, std::string text);

void check_memory(Operation& operation, const TensorView& tensor);
void check_reduction(Operation& operation, const TensorView& tensor,
                     const AllreduceOptions& options);
void check_output(Operation& operation, const InputOutput& tensor, const ProcessSet& set);

/// The memory of a tensor whose output is known before the operation runs.
UsedMemory used_memory(const Operation& operation, const InputOutput& tensor,
                       const ProcessSet& set);
void check_overlap(Operation& operation, std::span<const UsedMemory> used);

/// Returns equal splits, or checks those of the caller.
std::vector<std::int64_t> checked_splits(Operation& operation, std::int64_t rows,
                                         std::vector<std::int64_t> splits, int size);

}  // namespace kolo::runtime
