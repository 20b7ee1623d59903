#pragma once

#include <memory>
#include <string>

#include <ATen/core/Tensor.h>

#include "kolo/process_set.hpp"

namespace kolo::extras {

/// Means and variances of the channels of a batch, in float64: counts are exact, and rounding
/// errors of ranks do not accumulate.
struct Moments {
  at::Tensor count;     // []: values of a channel
  at::Tensor mean;      // [channels]; 0 without values
  at::Tensor variance;  // [channels], over the count; 0 without values
};

/// The dtype in which to compute with values of `type`.
at::ScalarType wide_type(at::ScalarType type);

/// The moments of [N, C, ...] on this rank.
Moments moments_of(const at::Tensor& input);

/// The moments of all ranks' values together. Collective and blocking. They are merged from each
/// rank's in rank order, so every rank gets the same bits, without differences of large squares.
/// Joined ranks are left out.
Moments merge(const Moments& own, ProcessSet& set, const std::string& name);

/// How a batch is normalized, besides its moments. Weight and bias may be undefined.
struct Normalization {
  at::Tensor weight;
  at::Tensor bias;
  double eps;
  std::shared_ptr<ProcessSet> set;
  std::string name;  // of the forward pass
};

/// Normalizes [N, C, ...] with the moments of all ranks' batches. Its backward() is collective,
/// under the name plus ".gradient", if the input requires a gradient.
at::Tensor normalize(const at::Tensor& input, const Moments& moments, const Normalization& how);

}  // namespace kolo::extras
