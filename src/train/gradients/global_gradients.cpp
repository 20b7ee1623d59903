#include "train/gradients/global_gradients.hpp"

#include <algorithm>
#include <cmath>
#include <sstream>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/view_as_real.h>

#include "kolo/error.hpp"

namespace kolo::train {
namespace {

constexpr double kSmallest = 1e-6;  // as in torch::nn::utils::clip_grad_norm_

/// The norm of each gradient; synchronizes with a GPU once.
std::vector<double> norms_of(const std::vector<at::Tensor>& gradients, double norm_type) {
  std::vector<at::Tensor> norms;
  for (const at::Tensor& gradient : gradients) {
    const at::Tensor elements = gradient.is_sparse() ? gradient.coalesce()._values() : gradient;
    if (elements.numel() == 0) continue;  // it has no infinity norm
    const at::ScalarType wide = gradient.is_complex() ? at::kComplexDouble : at::kDouble;
    norms.push_back(at::linalg_vector_norm(elements, norm_type, at::nullopt, false, wide));
  }
  if (norms.empty()) return {};
  const at::Tensor all = at::stack(norms).cpu();
  return {all.const_data_ptr<double>(), all.const_data_ptr<double>() + all.numel()};
}

/// std::max may drop a NaN.
double larger(double a, double b) { return b <= a ? a : b; }

}  // namespace

at::Tensor real_elements(const at::Tensor& gradient) {
  at::Tensor elements = gradient.is_sparse() ? gradient._values() : gradient;
  if (!elements.is_complex()) return elements;
  return at::view_as_real(elements.is_conj() ? elements.conj() : elements);
}

GlobalGradients::GlobalGradients(ProcessSet& set, const ShardSets& sets, GatherRows gather)
    : set_(set), sets_(sets), gather_(std::move(gather)) {}

void GlobalGradients::unscale(const std::vector<at::Tensor>& gradients, double scale) {
  const at::NoGradGuard no_grad;
  const at::Device device = gradients.empty() ? at::kCPU : gradients.front().device();
  const at::TensorOptions type = at::TensorOptions(at::kFloat).device(device);
  at::Tensor overflow = at::scalar_tensor(0.0, type);
  const at::Tensor inverse = at::scalar_tensor(1.0 / scale, type);
  for (const at::Tensor& gradient : gradients) {
    at::_amp_foreach_non_finite_check_and_unscale_(real_elements(gradient), overflow, inverse);
  }
  own_ = {0.0, overflow.item<double>(), static_cast<double>(gradients.size()), scale};
  found_.reset();
  if (!gather_) found_ = found_in({own_});
}

double GlobalGradients::clip(const std::vector<at::Tensor>& gradients, double max_norm,
                             double norm_type) {
  const at::NoGradGuard no_grad;
  const bool is_largest = std::isinf(norm_type);
  double own = 0.0;
  for (const double norm : norms_of(gradients, norm_type)) {
    own = is_largest ? larger(own, norm) : own + std::pow(norm, norm_type);
  }
  double total = gather_ ? 0.0 : own;
  int copies = 1;
  if (gather_) {
    for (const Row& row : allgather_rows(own)) {
      total = is_largest ? larger(total, row[kNorm]) : total + row[kNorm];
    }
    if (sets_.replicas != nullptr) copies = sets_.replicas->size();
  }
  const double norm = is_largest ? total : std::pow(total / copies, 1.0 / norm_type);
  const double factor = std::min(max_norm / (norm + kSmallest), 1.0);
  for (at::Tensor gradient : gradients) gradient.mul_(factor);
  return norm;
}

GlobalGradients::Found GlobalGradients::found() {
  if (!found_) allgather_rows(0.0);
  return *found_;
}

std::vector<GlobalGradients::Row> GlobalGradients::allgather_rows(double norm) {
  std::vector<Row> rows(static_cast<std::size_t>(set_.size()));
  Row own = own_;
  own[kNorm] = norm;
  gather_({own.data(), DType::Float64, {1, kColumns}, Device{}}, rows.data());
  require_equal_scales(rows);
  found_ = found_in(rows);
  return rows;
}

GlobalGradients::Found GlobalGradients::found_in(const std::vector<Row>& rows) {
  Found found = Found::NoGradients;
  for (const Row& row : rows) {
    if (row[kOverflow] != 0.0) return Found::Overflow;
    if (row[kGradients] != 0.0) found = Found::Finite;
  }
  return found;
}

/// Joined ranks have no scale.
void GlobalGradients::require_equal_scales(const std::vector<Row>& rows) const {
  const auto has_scale = [](const Row& row) { return row[kScale] != 0.0; };
  const auto first = std::find_if(rows.begin(), rows.end(), has_scale);
  const auto other = std::find_if(first, rows.end(), [&](const Row& row) {
    return has_scale(row) && row[kScale] != (*first)[kScale];
  });
  if (other == rows.end()) return;
  const auto text_of = [&](const auto& row) {
    std::ostringstream text;
    text << (*row)[kScale] << " on rank "
         << set_.ranks()[static_cast<std::size_t>(row - rows.begin())];
    return text.str();
  };
  throw MismatchError("GradScaler: ranks disagree: the scale is " + text_of(first) + ", and " +
                      text_of(other) +
                      ". Give every rank's scaler the same options, state and update().");
}

}  // namespace kolo::train
