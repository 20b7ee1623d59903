#pragma once

#include <functional>

#include "torch/tensors/tensor_operation.hpp"

namespace kolo::tensors {

/// Whether autograd must record an operation on these tensors.
bool needs_gradient(const Tensors& inputs);

/// Maps the gradients of an operation's floating-point outputs, in order, to those of the inputs at
/// the same indices. Gradients of outputs that the loss does not depend on are passed as zeros:
/// backward communicates, so all ranks must make the same calls.
using Gradient = std::function<Tensors(const Tensors& gradients)>;

/// Records for autograd that the floating-point tensors among the new `outputs` are results of
/// `inputs`. Both lists have the same length. The graph keeps `set` alive.
void record(const Tensors& inputs, const Tensors& outputs, const ProcessSet& set,
            Gradient gradient);

}  // namespace kolo::tensors
