#pragma once

#include <functional>

#include "torch/tensors/tensor_operation.hpp"

namespace kolo::tensors {

/// Whether autograd has to know of an operation on these tensors.
bool needs_gradient(const Tensors& inputs);

/// Given gradients with respect to the floating outputs of an operation, in their order, returns
/// those with respect to the inputs at the same places. It is given zeros where the loss does not
/// depend on an output: backward communicates, and its ranks must call alike.
using Gradient = std::function<Tensors(const Tensors& gradients)>;

/// Makes `outputs`, new tensors, results of as many `inputs` for autograd. Only floating ones can
/// be.
void record(const Tensors& inputs, const Tensors& outputs, Gradient gradient);

}  // namespace kolo::tensors
