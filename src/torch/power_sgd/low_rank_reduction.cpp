#include "torch/power_sgd/low_rank_reduction.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <span>
#include <utility>

#include <ATen/Functions.h>

#include "kolo/torch/tensor_collectives.hpp"
#include "torch/power_sgd/orthonormal.hpp"

namespace kolo::tensors {
namespace {

template <class Number>
std::span<Number> elements_of(const at::Tensor& tensor) {
  return {tensor.mutable_data_ptr<Number>(), static_cast<std::size_t>(tensor.numel())};
}

/// Runs on the CPU even for tensors on a GPU, so that all ranks get the same bits.
void orthonormalize_columns(const at::Tensor& matrix) {
  const at::Tensor host = matrix.cpu();
  const auto columns = static_cast<std::size_t>(host.size(1));
  if (host.scalar_type() == at::kDouble) {
    orthonormalize(elements_of<double>(host), columns);
  } else {
    orthonormalize(elements_of<float>(host), columns);
  }
  if (!host.is_same(matrix)) matrix.copy_(host);
}

/// The next [rows, columns] of a flat buffer.
at::Tensor take(const at::Tensor& flat, std::int64_t& offset, std::int64_t rows,
                std::int64_t columns) {
  const at::Tensor matrix = flat.narrow(0, offset, rows * columns).view({rows, columns});
  offset += rows * columns;
  return matrix;
}

}  // namespace

LowRankReduction::LowRankReduction(const PowerSgdOptions& options, WarmStarts& warm_starts,
                                   GradientBucket bucket)
    : options_(options),
      warm_starts_(warm_starts),
      bucket_(std::move(bucket)),
      type_(bucket_.gradients.options().dtype(
          at::promoteTypes(bucket_.gradients.scalar_type(), at::kFloat))) {
  for (std::size_t i = 0; i < bucket_.views.size(); ++i) {
    if (!compresses(bucket_.views[i])) {
      others_.push_back(i);
      continue;
    }
    const at::Tensor view = bucket_.views[i].flatten(1);
    matrices_.push_back({.parameter = i, .view = view, .sum = {}, .p = {}, .q = {}});
  }
  lay_out();
}

bool LowRankReduction::compresses(const at::Tensor& gradient) const {
  if (bucket_.step < options_.start_step || bucket_.process_set->size() == 1) return false;
  if (gradient.dim() < 2 || !gradient.is_floating_point()) return false;
  const auto elements = static_cast<double>(gradient.numel());
  const auto rows = static_cast<double>(gradient.size(0));
  return elements >= options_.min_compression_rate * (rows + elements / rows) * options_.rank;
}

/// All Ps are in one buffer, and all Qs in another.
void LowRankReduction::lay_out() {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  for (const Matrix& matrix : matrices_) {
    rows += matrix.view.size(0);
    columns += matrix.view.size(1);
  }
  all_p_ = at::empty({rows * options_.rank}, type_);
  all_q_ = at::empty({columns * options_.rank}, type_);
  std::int64_t p_offset = 0;
  std::int64_t q_offset = 0;
  for (Matrix& matrix : matrices_) {
    matrix.p = take(all_p_, p_offset, matrix.view.size(0), options_.rank);
    matrix.q = take(all_q_, q_offset, matrix.view.size(1), options_.rank);
  }
}

AllreduceOptions LowRankReduction::average(const std::string& suffix) const {
  return {.name = bucket_.name + suffix, .process_set = bucket_.process_set};
}

/// The gradient plus its residual, in `type`; computed in its bucket if the bucket has that type.
at::Tensor LowRankReduction::add_residual(std::size_t parameter, at::ScalarType type) const {
  at::Tensor sum = bucket_.views[parameter].to(type);
  if (!bucket_.residuals.empty()) sum.add_(bucket_.residuals[parameter]);
  return sum;
}

TensorHandle LowRankReduction::begin() {
  std::vector<at::Tensor> others;
  // They have residuals if these were loaded from a run that compressed them.
  for (const std::size_t i : others_) {
    others.push_back(add_residual(i, bucket_.views[i].scalar_type()));
  }
  if (matrices_.empty()) {
    at::Tensor gradients = bucket_.gradients;
    return allreduce_async_(gradients, average(""));
  }
  for (Matrix& matrix : matrices_) {
    matrix.sum = add_residual(matrix.parameter, type_.dtype().toScalarType()).flatten(1);
    at::mm_out(matrix.p, matrix.sum, first_q(matrix));
  }
  if (!others.empty()) reduced_others_ = grouped_allreduce_async_(others, average(".others"));
  return allreduce_async_(all_p_, average(".p"));
}

at::Tensor LowRankReduction::finish() {
  if (!matrices_.empty()) reduce_q();
  if (reduced_others_) reduced_others_->wait();
  for (const Matrix& matrix : matrices_) assign(matrix);
  for (const std::size_t i : others_) {
    if (bucket_.residuals.empty() || !bucket_.is_present(i)) continue;
    at::Tensor(bucket_.residuals[i]).zero_();
  }
  return bucket_.gradients;
}

void LowRankReduction::reduce_q() {
  for (Matrix& matrix : matrices_) {
    orthonormalize_columns(matrix.p);
    at::mm_out(matrix.q, matrix.sum.t(), matrix.p);
    matrix.own_q = matrix.q.clone();
  }
  allreduce_(all_q_, average(".q"));
}

void LowRankReduction::assign(const Matrix& matrix) {
  if (!bucket_.is_present(matrix.parameter)) return;
  const at::Tensor& view = matrix.view;
  // The same on all ranks: a P that is not finite on any rank has made all of Q non-finite.
  if (!matrix.q.isfinite().all().item<bool>()) {
    view.fill_(std::numeric_limits<double>::quiet_NaN());
    return;
  }
  const at::Tensor reduced = at::mm(matrix.p, matrix.q.t());
  const at::Tensor rounded = reduced.to(view.scalar_type());
  if (!bucket_.residuals.empty()) {  // before the view changes: the sum may be in its memory
    at::Tensor error = at::addmm(matrix.sum, matrix.p, matrix.own_q.t(), /*beta=*/1, /*alpha=*/-1);
    if (!rounded.is_same(reduced)) error.add_(at::sub(reduced, rounded));
    const at::Tensor& residual = bucket_.residuals[matrix.parameter];
    residual.copy_(error.view(residual.sizes()));
  }
  view.copy_(rounded);
  if (options_.warm_start) {
    warm_starts_[bucket_.parameter_names[matrix.parameter]] = next_q(matrix.q);
  }
}

/// The last Q, or a new one if a checkpoint's Q belongs to other options or another parameter.
at::Tensor LowRankReduction::first_q(const Matrix& matrix) const {
  const auto found = warm_starts_.find(bucket_.parameter_names[matrix.parameter]);
  const bool fits = found != warm_starts_.end() && found->second.sizes() == matrix.q.sizes();
  return fits ? found->second.to(type_) : random_q(matrix.q.size(0));
}

/// Values from -1 to 1 that are the same on all ranks and with every standard library.
at::Tensor LowRankReduction::random_q(std::int64_t rows) const {
  constexpr int kBits = 53;  // of a float64
  std::mt19937_64 generator(options_.seed + static_cast<std::uint64_t>(bucket_.step));
  at::Tensor q = at::empty({rows, options_.rank}, at::kDouble);
  for (double& value : elements_of<double>(q)) {
    const auto drawn = static_cast<double>(generator() >> (64 - kBits));
    value = std::ldexp(drawn, 1 - kBits) - 1;
  }
  return q.to(type_);
}

/// Makes columns orthonormal, since otherwise the products of small gradients would vanish.
/// Replaces columns that are zero, which would stay zero forever.
at::Tensor LowRankReduction::next_q(const at::Tensor& q) const {
  at::Tensor next = q.clone();
  orthonormalize_columns(next);
  const at::Tensor is_zero = next.eq(0).all(0);
  return is_zero.any().item<bool>() ? at::where(is_zero, random_q(q.size(0)), next) : next;
}

}  // namespace kolo::tensors
