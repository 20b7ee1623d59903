#pragma once

#include <string>

#include <ATen/core/Tensor.h>

#include "kolo/process_set.hpp"

namespace kolo::tensors {

/// Means and variances of the channels of a batch, in float64: counts are exact, and what ranks
/// have rounded does not add up.
struct Moments {
  at::Tensor count;     // []: values of a channel
  at::Tensor mean;      // [channels]; 0 without values
  at::Tensor variance;  // [channels], over the count; 0 without values
};

/// The dtype of arithmetic on this one.
at::ScalarType wide_type(at::ScalarType type);

/// Those of [N, C, ...] on this rank.
Moments moments_of(const at::Tensor& input);

/// Those of all ranks' values together. Collective and blocking. They are merged from each rank's,
/// in the order of ranks, so every rank gets the same bits; there is no difference of large squares
/// in it. Ranks that have joined are left out.
Moments merge(const Moments& own, ProcessSet& set, const std::string& name);

}  // namespace kolo::tensors
