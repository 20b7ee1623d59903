#pragma once

#include <c10/core/ScalarType.h>
#include <torch/nn/module.h>

#include "kolo/torch/filters.hpp"

#pragma GCC visibility push(default)
namespace kolo {

/// Converts the floating parameters and buffers of a model to `dtype`, as Module::to(), except in
/// modules that need more range or precision. Tensors stay the same objects, so existing optimizers
/// still step them. Call it before you construct a DistributedOptimizer; with master_weights, the
/// optimizer then updates float16 and bfloat16 parameters in float32. Complex tensors are not
/// converted.
///
///   kolo::set_dtype(*model, at::kBFloat16, kolo::modules_of<torch::nn::LayerNorm>());
///
/// @param dtype a floating dtype
/// @param keep selects modules that keep their dtypes, including parameters that they share with
///   other modules. Of LibTorch's modules, BatchNorm, GroupNorm and LayerNorm accept input of a
///   dtype other than their own
/// @throws InvalidArgument if `dtype` is not floating, or a parameter belongs to an optimizer with
///   Shard::Full or to a deferred model
void set_dtype(torch::nn::Module& model, c10::ScalarType dtype, const ModuleFilter& keep = {});

}  // namespace kolo
#pragma GCC visibility pop
