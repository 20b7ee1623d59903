#pragma once

#include <functional>

#include "torch/tensors/tensor_operation.hpp"

namespace kolo::tensors {

/// Whether autograd must record an operation on these tensors.
bool needs_gradient(const Tensors& inputs);

/// Maps the gradients of an operation's floating outputs, in order, to those of the inputs at the
/// same places. It gets zeros for outputs on which the loss does not depend: backward communicates,
/// so all ranks must make the same calls.
using Gradient = std::function<Tensors(const Tensors& gradients)>;

/// Makes the new tensors `outputs` results of as many `inputs` for autograd, the floating ones.
void record(const Tensors& inputs, const Tensors& outputs, Gradient gradient);

}  // namespace kolo::tensors
