#pragma once

#include <memory>
#include <optional>
#include <utility>

#include "kolo/collectives.hpp"
#include "kolo/error.hpp"
#include "kolo/handle.hpp"
#include "kolo/process_set.hpp"
#include "kolo/tensor_view.hpp"
#include "runtime/operation.hpp"

/// What the public collectives have in common: from options to an operation in its lane.
namespace kolo::runtime {

/// The set that options name: `set`, or the world of Runtime::current().
ProcessSet& chosen(ProcessSet* set);

/// An operation on `tensor` with what all collectives have in common. Throws InvalidArgument where
/// the tensor's memory is unsuitable.
std::shared_ptr<Operation> make_operation(ProcessSet& set, Collective collective,
                                          const TensorView& tensor,
                                          const OperationOptions& options);

std::shared_ptr<Operation> make_all_reduce(ProcessSet& set, const TensorView& input,
                                           const TensorView& output,
                                           const AllreduceOptions& options);

Handle submit(ProcessSet& set, std::shared_ptr<Operation> operation);

}  // namespace kolo::runtime
