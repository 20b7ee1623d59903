#pragma once

#include <functional>

#include "torch/tensors/graph_node.hpp"
#include "torch/tensors/tensor_operation.hpp"

namespace kolo::tensors {

/// Whether autograd must record an operation on these tensors.
bool needs_gradient(const Tensors& inputs);

/// Maps the gradients of an operation's floating-point outputs, in order, to those of the inputs at
/// the same indices. Gradients of outputs that the loss does not depend on are passed as zeros:
/// backward communicates, so all ranks must make the same calls.
using Gradient = std::function<Tensors(const Tensors& gradients)>;

/// Records an operation for autograd, if it must. Made when the operation is submitted: the inputs
/// may change afterwards, and backward communicates in the reverse order of the calls.
class Recording {
 public:
  /// The graph keeps `set` alive.
  Recording(const Tensors& inputs, const ProcessSet& set);

  /// Makes the floating-point tensors among the new `outputs`, as many as there were inputs, the
  /// results of the inputs.
  void finish(const Tensors& outputs, Gradient gradient) const;

 private:
  NodeOwner node_;  // null: nothing to record
};

}  // namespace kolo::tensors
