#pragma once

#include <string>

#include <ATen/core/Tensor.h>

#include "kolo/distributed_optimizer.hpp"
#include "kolo/tensor_handle.hpp"

namespace kolo::tensors {

/// Begins the sparse all-reduce of a parameter's gradient, of which this rank may have none, under
/// the name `name`.
TensorHandle reduce_sparse_gradient(const at::Tensor& parameter,
                                    const DistributedOptimizerOptions& options, std::string name);

}  // namespace kolo::tensors
