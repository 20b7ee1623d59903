#include "torch/clip_divided.hpp"

#include <algorithm>
#include <cmath>
#include <string>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/linalg_vector_norm.h>

#include "kolo/error.hpp"

namespace kolo::tensors {
namespace {

constexpr double kSmallest = 1e-6;  // as torch::nn::utils::clip_grad_norm_

}  // namespace

double clip_divided(const std::vector<at::Tensor>& gradients, double max_norm, double norm_type,
                    const OperationOptions& options) {
  if (!(norm_type > 0.0)) {
    throw InvalidArgument("DistributedOptimizer: clip_grad_norm_ with norm_type " +
                          std::to_string(norm_type) + ", which must be positive");
  }
  const at::NoGradGuard no_grad;
  const bool is_largest = std::isinf(norm_type);
  double total = 0.0;  // of the norms' powers, or the largest
  for (const at::Tensor& gradient : gradients) {
    const double norm =
        at::linalg_vector_norm(gradient, norm_type, at::nullopt, false, at::kDouble).item<double>();
    // Not std::max, which may drop a NaN.
    total = is_largest ? (norm <= total ? total : norm) : total + std::pow(norm, norm_type);
  }
  AllreduceOptions combine;
  combine.op = is_largest ? ReduceOp::Max : ReduceOp::Sum;
  combine.name = options.name;
  combine.process_set = options.process_set;
  const TensorView view{&total, DType::Float64, {1}, Device{}};
  allreduce(view, view, combine);
  const double norm = is_largest ? total : std::pow(total, 1.0 / norm_type);
  const double factor = std::min(max_norm / (norm + kSmallest), 1.0);
  for (at::Tensor gradient : gradients) gradient.mul_(factor);
  return norm;
}

}  // namespace kolo::tensors
