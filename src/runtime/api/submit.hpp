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

/// What the public collectives have in common: from options to an operation in its lane.
///
/// What is wrong with the arguments becomes the request's defect rather than an exception: the
/// other ranks wait for this operation and must learn that it will not come.
namespace kolo::runtime {

/// The set that options name: `set`, or the world of Runtime::current().
ProcessSet& chosen(ProcessSet* set);

/// An operation without tensors. Throws InvalidArgument where this rank is no member of the set.
std::shared_ptr<Operation> make_operation(ProcessSet& set, Collective collective,
                                          const OperationOptions& options);

/// Adds a tensor to a group, and returns its memory to be filled in.
TensorMemory& add_tensor(Operation& operation, const TensorView& tensor);

/// The same for collectives whose first dimension may differ between ranks.
TensorMemory& add_rows(Operation& operation, const TensorView& tensor);

/// Remembers the first thing that is wrong.
void add_defect(Operation& operation, std::string text);

/// The world ranks of a process set, ascending, in a world of `world_size`.
void add_members(Operation& operation, const std::vector<int>& ranks, int world_size);

std::shared_ptr<Operation> make_reduction(ProcessSet& set, Collective collective,
                                          const std::vector<InputOutput>& tensors,
                                          const AllreduceOptions& options);

std::shared_ptr<Operation> make_broadcast(ProcessSet& set, const std::vector<TensorView>& tensors,
                                          int root, const OperationOptions& options);

std::shared_ptr<Operation> make_alltoall(ProcessSet& set, const TensorView& input,
                                         std::vector<std::int64_t> splits, AllocateRows allocate,
                                         const OperationOptions& options);

Handle submit(ProcessSet& set, std::shared_ptr<Operation> operation);

/// Drives the operation to its end on this thread, and throws its error.
void run(ProcessSet& set, const std::shared_ptr<Operation>& operation);

/// Ends the operation on all ranks with InvalidArgument and `text`: for callers whose arguments
/// cannot be made a TensorView of.
Handle submit_defect(Collective collective, std::string text, const OperationOptions& options);

}  // namespace kolo::runtime
