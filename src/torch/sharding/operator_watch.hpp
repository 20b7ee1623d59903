#pragma once

#include <memory>

#include <ATen/core/Tensor.h>

#include "torch/sharding/gathered_units.hpp"

namespace kolo::tensors {

/// From now on, units are in use while LibTorch runs an operator that takes their parameters, or
/// views of them: in forward(), backward() and elsewhere, on any thread. They are kept for as long
/// as others have their parameters, beyond the optimizer.
void watch_operators(std::shared_ptr<GatheredUnits> units);

/// Makes a gathered parameter an ordinary one, with memory of its own. Collective.
void take_from_units(const at::Tensor& parameter);

/// Drops units whose parameters nobody else has.
void forget_unused_units();

}  // namespace kolo::tensors
