#pragma once

#include <string>

#include <ATen/core/Tensor.h>

#include "kolo/distributed_optimizer.hpp"
#include "kolo/tensor_handle.hpp"

namespace kolo::tensors {

/// Starts the sparse all-reduce of a parameter's gradient, which this rank may lack, under `name`.
TensorHandle reduce_sparse_gradient(const at::Tensor& parameter,
                                    const DistributedOptimizerOptions& options, std::string name);

}  // namespace kolo::tensors
