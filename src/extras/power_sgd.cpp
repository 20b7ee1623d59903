#include "extras/power_sgd.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ATen/Functions.h>
#include <c10/util/StringUtil.h>

#include "extras/plain_arithmetic.hpp"
#include "kolo/agreement.hpp"
#include "kolo/error.hpp"
#include "kolo/extras/power_sgd.hpp"
#include "kolo/torch/tensor_collectives.hpp"

namespace kolo::extras {
namespace {

using Column = std::vector<double>;

// A dependent column leaves rounding errors: a few units in the last place of its elements.
constexpr double kRoundings = 16;

double dot(const Column& a, const Column& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

void subtract_projection(Column& column, const Column& unit) {
  const double length = dot(column, unit);
  for (std::size_t i = 0; i < column.size(); ++i) column[i] -= length * unit[i];
}

}  // namespace

template <class Number>
void orthonormalize(std::span<Number> matrix, std::size_t columns) {
  constexpr double kDependent = kRoundings * std::numeric_limits<Number>::epsilon();
  const std::size_t rows = matrix.size() / columns;
  std::vector<Column> units;
  for (std::size_t k = 0; k < columns; ++k) {
    Column column(rows);
    for (std::size_t i = 0; i < rows; ++i) column[i] = matrix[i * columns + k];
    const double before = std::sqrt(dot(column, column));
    for (const Column& unit : units) subtract_projection(column, unit);
    const double norm = std::sqrt(dot(column, column));
    if (!std::isfinite(norm)) {
      std::ranges::fill(column, std::numeric_limits<double>::quiet_NaN());
    } else if (norm <= kDependent * before) {
      std::ranges::fill(column, 0.0);
    } else {
      for (double& value : column) value /= norm;
    }
    for (std::size_t i = 0; i < rows; ++i) matrix[i * columns + k] = static_cast<Number>(column[i]);
    units.push_back(std::move(column));
  }
}

template void orthonormalize(std::span<float> matrix, std::size_t columns);
template void orthonormalize(std::span<double> matrix, std::size_t columns);

namespace {

template <class Number>
std::span<Number> span_of(const at::Tensor& tensor) {
  return {tensor.mutable_data_ptr<Number>(), static_cast<std::size_t>(tensor.numel())};
}

/// Runs on the CPU even for tensors on a GPU, so that all ranks get the same bits.
void orthonormalize_columns(const at::Tensor& matrix) {
  const at::Tensor host = matrix.cpu();
  const auto columns = static_cast<std::size_t>(host.size(1));
  if (host.scalar_type() == at::kDouble) {
    orthonormalize(span_of<double>(host), columns);
  } else {
    orthonormalize(span_of<float>(host), columns);
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
  // All ranks see it alike: a P that is not finite on any rank has made all of Q non-finite.
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
  for (double& value : span_of<double>(q)) {
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

TensorHandle PowerSgdReducer::reduce(GradientBucket bucket) {
  if (bucket.process_set != set_.get()) {
    throw InvalidArgument("PowerSgd: it was made for process set " + set_->name() +
                          ", and the optimizer reduces over " + bucket.process_set->name() +
                          ". Give both the same one, by PowerSgdOptions::process_set.");
  }
  const PlainArithmetic arithmetic;
  auto reduction = std::make_shared<LowRankReduction>(options_, warm_starts_, std::move(bucket));
  return reduction->begin().then([reduction](const at::Tensor&) {
    const PlainArithmetic as_before;
    return reduction->finish();
  });
}

}  // namespace kolo::extras

namespace kolo {
namespace {

std::string problem_with(const PowerSgdOptions& options) {
  if (options.rank < 1) return c10::str("rank is ", options.rank, ". It must be at least 1.");
  if (options.start_step < 0) {
    return c10::str("start_step is ", options.start_step, ". It must not be negative.");
  }
  if (!(options.min_compression_rate >= 1 && std::isfinite(options.min_compression_rate))) {
    return c10::str("min_compression_rate is ", options.min_compression_rate,
                    ". It must be a number from 1 on: below, P and Q are larger than gradients.");
  }
  return {};
}

/// The options with their process set. Collective.
PowerSgdOptions agreed(PowerSgdOptions options) {
  ProcessSet& set = member_set(options.process_set);
  options.process_set = &set;
  check_agreement("PowerSgd",
                  {{"rank", std::to_string(options.rank)},
                   {"start_step", std::to_string(options.start_step)},
                   {"min_compression_rate", std::to_string(options.min_compression_rate)},
                   {"error_feedback", options.error_feedback ? "true" : "false"},
                   {"warm_start", options.warm_start ? "true" : "false"},
                   {"seed", std::to_string(options.seed)}},
                  problem_with(options), {.name = set.next_name("power_sgd"), .process_set = &set});
  return options;
}

}  // namespace

PowerSgd::PowerSgd(const Options& options)
    : reducer_(std::make_shared<extras::PowerSgdReducer>(agreed(options))) {}

BucketHook PowerSgd::hook() const {
  BucketHook hook(
      [reducer = reducer_](GradientBucket bucket) { return reducer->reduce(std::move(bucket)); });
  hook.error_feedback = reducer_->options().error_feedback;
  if (!reducer_->options().warm_start) return hook;
  hook.state = [reducer = reducer_] { return reducer->state(); };
  hook.set_state = [reducer = reducer_](const auto& state) { reducer->set_state(state); };
  return hook;
}

}  // namespace kolo
