#pragma once

#include <cstdint>
#include <memory>

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include "torch/sharding/gathered_units.hpp"

namespace kolo::tensors {

/// From now on, units are in use while LibTorch runs an operator that takes their parameters, or
/// views of them: in forward(), backward() and elsewhere, on any thread. They are kept for as long
/// as others have their parameters, beyond the optimizer.
void watch_operators(std::shared_ptr<GatheredUnits> units);

/// The units with which a parameter is gathered; null if it is not.
const GatheredUnits* units_of(const c10::Storage& parameter);

/// A range of a parameter's elements.
struct ElementRange {
  std::int64_t begin;
  at::Tensor elements;  ///< [n]
};
/// What this rank keeps of a gathered parameter: its part of the rank's shard.
ElementRange own_elements(const c10::Storage& parameter);

/// Makes a gathered parameter an ordinary one, with memory of its own. Collective.
void take_from_units(const at::Tensor& parameter);

/// Drops units whose parameters nobody else has.
void forget_unused_units();

}  // namespace kolo::tensors
