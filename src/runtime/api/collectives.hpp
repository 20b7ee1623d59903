#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kolo/collectives.hpp"
#include "kolo/handle.hpp"
#include "kolo/process_set.hpp"
#include "kolo/tensor_view.hpp"
#include "runtime/data/operation.hpp"

namespace kolo::runtime {

/// Common parts of the public collectives: from options to an operation in its engine.
///
/// Invalid arguments are recorded in the request rather than thrown: the other ranks wait for this
/// operation and must learn that it cannot run.

#pragma GCC visibility push(default)  // libkolo.so uses it
/// Returns the set that options name: `set`, or the world of Runtime::current().
ProcessSet& set_or_world(ProcessSet* set);

/// An operation that is to be submitted to a process set.
struct Submission {
  ProcessSet& set;
  std::shared_ptr<Operation> operation;
};

/// Makes an operation without tensors. Throws InvalidArgument if this rank is not a member of the
/// set that options name.
Submission make_operation(Collective collective, const OperationOptions& options);

/// Adds a tensor to an operation; the caller sets its output.
TensorMemory& add_tensor(Operation& operation, const TensorView& tensor);

/// Adds a tensor whose first dimension may differ between ranks, and the allocator of its output.
TensorMemory& add_rows(Operation& operation, const TensorView& tensor, AllocateRows allocate);

/// Why a set cannot have these members, ascending world ranks in a world of `world_size`; empty: it
/// can.
std::string problem_with_members(const std::vector<int>& ranks, int world_size);
/// Sets the members of a process set.
void add_members(Operation& operation, const std::vector<int>& ranks, int world_size);

Submission make_reduction(Collective collective, const std::vector<InputOutput>& tensors,
                          const AllreduceOptions& options);

Submission make_broadcast(const std::vector<TensorView>& tensors, int root,
                          const OperationOptions& options);

Submission make_allgather(std::vector<InputRows> tensors, const OperationOptions& options);

/// The outputs of an all-gather: the rank's own memory, or memory shared by all ranks of its node,
/// which no rank uses between its submission and the end of the operation.
enum class Outputs : std::uint8_t { PerRank, PerNode };

/// Gathers `rows[r]` rows of each tensor from rank r. The ranks exchange no row counts and nothing
/// is allocated while it runs, so on a GPU it waits for nothing that the program launches later.
Submission make_allgather(const std::vector<InputAndGathered>& tensors,
                          std::vector<std::int64_t> rows, Outputs outputs,
                          const OperationOptions& options);

/// Allocates memory that the ranks of the set can access, `size_bytes` on each.
Submission make_sharing(std::size_t size_bytes, const OperationOptions& options);

/// Allocates memory for outputs of a node: `size_bytes` on each rank, accessible to the ranks of
/// its node. Null, on all ranks of the node, if the system provides none. Collective and blocking.
std::shared_ptr<SharedWindow> make_node_window(std::size_t size_bytes,
                                               const OperationOptions& options);

Submission make_alltoall(const TensorView& input, std::vector<std::int64_t> splits,
                         AllocateRows allocate, const OperationOptions& options);

Handle submit(Submission submission);

/// Runs the operation to its end on this thread, and throws its error.
void run(const Submission& submission);

/// Ends the operation on all ranks with InvalidArgument and `text`: for callers whose arguments
/// cannot be represented as a TensorView.
Handle submit_invalid(Collective collective, std::string text, const OperationOptions& options);
#pragma GCC visibility pop

/// Records why the arguments are invalid; only the first reason is kept.
void add_invalid_reason(Operation& operation, std::string text);

}  // namespace kolo::runtime
