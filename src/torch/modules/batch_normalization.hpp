#pragma once

#include <memory>
#include <string>

#include <ATen/core/Tensor.h>

#include "kolo/process_set.hpp"
#include "torch/modules/batch_moments.hpp"

namespace kolo::tensors {

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

}  // namespace kolo::tensors
