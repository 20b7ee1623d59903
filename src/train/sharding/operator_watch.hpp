#pragma once

#include <cstdint>
#include <memory>

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include "train/sharding/gathered_units.hpp"

namespace kolo::train {

/// From now on, units are in use while LibTorch runs an operator that takes their parameters, or
/// views of them: in forward(), backward() and elsewhere, on any thread. Units live as long as
/// their parameters, beyond the optimizer.
void watch_operators(std::shared_ptr<GatheredUnits> units);

/// The units that gather a parameter; null if none do.
const GatheredUnits* units_of(const c10::Storage& parameter);

/// A range of a parameter's elements.
struct ElementRange {
  std::int64_t begin;
  at::Tensor elements;  ///< [n]
};
/// The elements of a gathered parameter in this rank's shard.
ElementRange own_elements(const c10::Storage& parameter);

/// Makes a gathered parameter an ordinary one with its own memory. Collective.
void take_from_units(const at::Tensor& parameter);

/// Drops units whose parameters are not referenced elsewhere.
void forget_unused_units();

}  // namespace kolo::train
