#include "torch/power_sgd/low_rank_reduction.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <span>
#include <utility>

#include <ATen/Functions.h>

#include "kolo/tensor_collectives.hpp"
#include "torch/power_sgd/orthonormal.hpp"

namespace kolo::tensors {
namespace {

template <class Number>
std::span<Number> elements_of(const at::Tensor& tensor) {
  return {tensor.mutable_data_ptr<Number>(), static_cast<std::size_t>(tensor.numel())};
}

/// On the CPU for tensors on a GPU, too: the ranks must have the same bits.
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

LowRankReduction::LowRankReduction(const PowerSgdOptions& options, GradientBucket bucket,
                                   const std::vector<LowRankGradient>& gradients)
    : options_(options), bucket_(std::move(bucket)) {
  const at::ScalarType type = at::promoteTypes(bucket_.gradients.scalar_type(), at::kFloat);
  type_ = bucket_.gradients.options().dtype(type);
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  for (const LowRankGradient& gradient : gradients) {
    rows += gradient.view.size(0);
    columns += gradient.view.size(1);
  }
  all_p_ = at::empty({rows * options.rank}, type_);
  all_q_ = at::empty({columns * options.rank}, type_);
  std::int64_t p_offset = 0;
  std::int64_t q_offset = 0;
  for (const LowRankGradient& gradient : gradients) {
    matrices_.push_back({.gradient = gradient,
                         .sum = gradient.view.to(type),
                         .p = take(all_p_, p_offset, gradient.view.size(0), options.rank),
                         .q = take(all_q_, q_offset, gradient.view.size(1), options.rank)});
  }
}

AllreduceOptions LowRankReduction::average(const char* suffix) const {
  return {.name = bucket_.name + suffix, .process_set = bucket_.process_set};
}

TensorHandle LowRankReduction::begin() {
  std::vector<bool> is_compressed(bucket_.views.size());
  for (Matrix& matrix : matrices_) {
    const LowRankGradient& gradient = matrix.gradient;
    is_compressed[gradient.parameter] = true;
    if (gradient.state->error.defined()) matrix.sum.add_(gradient.state->error);
    at::mm_out(matrix.p, matrix.sum, first_q(matrix));
  }
  std::vector<at::Tensor> others;
  for (std::size_t i = 0; i < is_compressed.size(); ++i) {
    if (!is_compressed[i]) others.push_back(bucket_.views[i]);
  }
  if (!others.empty()) others_ = grouped_allreduce_async_(others, average(".others"));
  return allreduce_async_(all_p_, average(".p"));
}

at::Tensor LowRankReduction::finish() {
  for (Matrix& matrix : matrices_) {
    orthonormalize_columns(matrix.p);
    at::mm_out(matrix.q, matrix.sum.t(), matrix.p);
    matrix.own_q = matrix.q.clone();
  }
  allreduce_(all_q_, average(".q"));
  if (others_) others_->wait();
  for (const Matrix& matrix : matrices_) assign(matrix);
  return bucket_.gradients;
}

void LowRankReduction::assign(const Matrix& matrix) {
  const LowRankGradient& gradient = matrix.gradient;
  if (!bucket_.is_present(gradient.parameter)) return;
  const at::Tensor& view = gradient.view;
  // Ranks come to the same end: a P that is not finite anywhere has made all of Q so.
  if (!matrix.q.isfinite().all().item<bool>()) {
    view.fill_(std::numeric_limits<double>::quiet_NaN());
    return;
  }
  const at::Tensor reduced = at::mm(matrix.p, matrix.q.t());
  const at::Tensor rounded = reduced.to(view.scalar_type());
  if (options_.error_feedback) {  // before the view changes, in whose memory the sum may lie
    gradient.state->error = at::addmm(matrix.sum, matrix.p, matrix.own_q.t(), 1, -1);
    if (!rounded.is_same(reduced)) gradient.state->error.add_(reduced - rounded);
  }
  view.copy_(rounded);
  if (options_.warm_start) gradient.state->q = next_q(matrix.q);
}

at::Tensor LowRankReduction::first_q(const Matrix& matrix) const {
  const at::Tensor& q = matrix.gradient.state->q;
  return q.defined() ? q : random_q(matrix.q.size(0));
}

/// The same on all ranks, with every standard library: between -1 and 1.
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

/// Orthonormal columns, or the products of small gradients would vanish. A column that is zero
/// would stay so for good.
at::Tensor LowRankReduction::next_q(const at::Tensor& q) const {
  at::Tensor next = q.clone();
  orthonormalize_columns(next);
  const at::Tensor is_zero = next.eq(0).all(0);
  return is_zero.any().item<bool>() ? at::where(is_zero, random_q(q.size(0)), next) : next;
}

}  // namespace kolo::tensors
