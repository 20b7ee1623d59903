#include "torch/modules/batch_moments.hpp"

#include <cstdint>
#include <tuple>

#include <ATen/TensorOperators.h>
#include <ATen/ops/batch_norm_update_stats.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include "kolo/torch/tensor_collectives.hpp"

namespace kolo::tensors {

at::ScalarType wide_type(at::ScalarType type) {
  return at::isReducedFloatingType(type) ? at::kFloat : type;
}

Moments moments_of(const at::Tensor& input) {
  const std::int64_t channels = input.size(1);
  const auto options = input.options().dtype(at::kDouble);
  if (input.numel() == 0) {
    return {at::zeros({}, options), at::zeros({channels}, options), at::zeros({channels}, options)};
  }
  const auto [mean, variance] =
      at::batch_norm_update_stats(input.to(wide_type(input.scalar_type())), {}, {}, 0.0);
  return {at::full({}, input.numel() / channels, options), mean.to(at::kDouble),
          variance.to(at::kDouble)};
}

Moments merge(const Moments& own, ProcessSet& set, const std::string& name) {
  const at::Tensor row = at::cat({own.count.view(1), own.mean, own.variance}).unsqueeze(0);
  const at::Tensor rows = allgather(row, {.name = name, .process_set = &set});
  const std::int64_t channels = own.mean.size(0);
  const at::Tensor counts = rows.narrow(1, 0, 1);
  const at::Tensor means = rows.narrow(1, 1, channels);
  const at::Tensor variances = rows.narrow(1, 1 + channels, channels);

  const at::Tensor count = counts.sum();
  const at::Tensor shares = counts / count.clamp_min(1);
  const at::Tensor mean = (shares * means).sum(0);
  return {count, mean, (shares * (variances + (means - mean).square())).sum(0)};
}

}  // namespace kolo::tensors
