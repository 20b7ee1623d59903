#pragma once

#include <c10/core/ScalarType.h>
#include <torch/nn/module.h>

#include "kolo/module_filter.hpp"

#pragma GCC visibility push(default)
namespace kolo {

/// Converts the floating parameters and buffers of a model to `dtype`, as Module::to(), but for
/// modules that need more range or precision. Tensors stay the same objects, so that optimizers
/// still step them. Call it before a DistributedOptimizer is made; with its master_weights, float16
/// and bfloat16 parameters are then updated in float32. Complex ones stay as they are.
///
///   kolo::set_dtype(*model, at::kBFloat16, kolo::modules_of<torch::nn::LayerNorm>());
///
/// @param dtype a floating dtype
/// @param keep modules that keep their dtypes; so do parameters that they share with others. Of
///   LibTorch's modules, BatchNorm, GroupNorm and LayerNorm take input of another dtype than theirs
/// @throws InvalidArgument if `dtype` is not floating, or a parameter belongs to an optimizer with
///   Shard::Full or to a deferred model
void set_dtype(torch::nn::Module& model, c10::ScalarType dtype, const ModuleFilter& keep = {});

}  // namespace kolo
#pragma GCC visibility pop
