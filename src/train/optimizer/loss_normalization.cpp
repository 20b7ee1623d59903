#include "train/optimizer/loss_normalization.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <memory>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full_like.h>

#include "kolo/collectives.hpp"
#include "kolo/error.hpp"

namespace kolo::train {
namespace {

constexpr std::int64_t kColumns = sizeof(CountRow) / sizeof(std::int64_t);

std::string text_of_problem(const CountRow& row) {
  const std::string count = "the count " + std::to_string(row.wrong_count);
  if (row.problem == CountProblem::NegativeCount) return count + ", which must be 0 or more.";
  if (row.problem == CountProblem::UndefinedLoss) {
    return "an undefined loss_sum with " + count + ". A rank without samples passes the count 0.";
  }
  return "with " + count +
         " a loss_sum without a graph. Compute it from the model's parameters, with gradients "
         "enabled.";
}

}  // namespace

CountRows::CountRows(const CountRow& own, ProcessSet& set)
    : set_(set),
      rows_(std::make_shared<std::vector<CountRow>>(static_cast<std::size_t>(set.size()))) {
  (*rows_)[static_cast<std::size_t>(set.rank())] = own;
}

CountRows::CountRows(const CountRow& own, ProcessSet& set, const std::string& name)
    : CountRows(own, set) {
  const TensorView view{rows_->data(), DType::Int64, {set.size(), kColumns}, Device{}};
  handle_ = allreduce_async(
      view, view, {.op = ReduceOp::Sum, .name = name, .process_set = &set, .keep_alive = rows_});
}

std::int64_t CountRows::total() const {
  std::int64_t total = 0;
  for (const CountRow& row : *rows_) total += row.count;
  return total;
}

int CountRows::active_ranks() const {
  return static_cast<int>(
      std::ranges::count_if(*rows_, [](const CountRow& row) { return row.is_active != 0; }));
}

std::string CountRows::ranks_with(std::int64_t CountRow::* column) const {
  std::string ranks;
  for (std::size_t i = 0; i < rows_->size(); ++i) {
    if ((*rows_)[i].*column == 0) continue;
    ranks += (ranks.empty() ? "rank " : ", rank ") + std::to_string(set_.ranks()[i]);
  }
  return ranks;
}

void CountRows::require_consistent() const {
  for (std::size_t i = 0; i < rows_->size(); ++i) {
    if ((*rows_)[i].problem == CountProblem::None) continue;
    throw InvalidArgument("DistributedOptimizer: backward(loss_sum, count) on rank " +
                          std::to_string(set_.ranks()[i]) + " got " + text_of_problem((*rows_)[i]));
  }
  const std::string uncounted = ranks_with(&CountRow::has_uncounted);
  if (uncounted.empty()) return;
  throw InvalidArgument("DistributedOptimizer: in one step, backward(loss_sum, count) ran on " +
                        ranks_with(&CountRow::has_counted) +
                        ", and a backward() without count on " + uncounted +
                        ". Use one of them for all passes of a step, on all ranks; drop the "
                        "gradients of other passes "
                        "by zero_grad() first.");
}

namespace {

double power_of_two_near(double count) {
  return count < 1.0 ? 1.0 : std::exp2(std::round(std::log2(count)));
}

CountProblem problem_with_count(const at::Tensor& loss_sum, std::int64_t count) {
  if (count < 0) return CountProblem::NegativeCount;
  if (count == 0) return CountProblem::None;
  if (!loss_sum.defined()) return CountProblem::UndefinedLoss;
  return loss_sum.requires_grad() ? CountProblem::None : CountProblem::DetachedLoss;
}

}  // namespace

void LossNormalization::backward(const at::Tensor& loss_sum, std::int64_t count) {
  if (context_.options.op == ReduceOp::Adasum) {
    throw InvalidArgument(
        "DistributedOptimizer: backward(loss_sum, count) with op Adasum, which combines ranks by "
        "the angles of their gradients, not by counts. Use Average, or loss.backward().");
  }
  const bool is_common = context_.step.no_sync == 0;
  if (std::exchange(has_uncounted_alone_, false) && has_gradients()) {
    context_.step.own_passes.uncounted = true;
  }
  context_.step.own_passes.counted = true;
  has_common_passes_ = has_common_passes_ || is_common;
  if (is_common && needs_agreement()) agree_on_reference(std::max<std::int64_t>(count, 0));
  if (const CountProblem problem = problem_with_count(loss_sum, count);
      problem != CountProblem::None) {
    if (problem_ != CountProblem::None) return;
    problem_ = problem;
    wrong_count_ = count;
    return;
  }
  // If operators of backward() gather parameters, all ranks must run it.
  const bool is_run = count > 0 || (context_.gathers_on_use && loss_sum.defined());
  if (is_run) {
    is_counting_ = true;
    const auto end = [](bool* is_counting) { *is_counting = false; };
    const std::unique_ptr<bool, decltype(end)> pass(&is_counting_, end);
    loss_sum.backward(at::full_like(loss_sum.detach(), count > 0 ? 1.0 / reference() : 0.0));
  }
  count_ += count;
  has_counted_alone_ = !has_common_passes_;
}

void LossNormalization::forget_dropped() {
  if (has_counted_alone_ && problem_ == CountProblem::None && !has_gradients()) restart();
}

void LossNormalization::note_pass() {
  PassKinds& own = context_.step.own_passes;
  if (is_counting_) {
    own.counted = true;
    return;
  }
  // Nothing is left of passes without samples, or that have thrown: the program may have dropped
  // other ranks' gradients.
  if (own.counted && count_ == 0 && problem_ == CountProblem::None && !has_gradients()) {
    own.counted = false;
  }
  if (context_.step.no_sync == 0 || own.counted) {
    own.uncounted = true;
  } else {
    has_uncounted_alone_ = true;
  }
}

void LossNormalization::restart() {
  context_.step.own_passes = {};
  context_.step.has_any_counted = false;
  has_common_passes_ = is_counting_ && context_.step.no_sync == 0;
  has_uncounted_alone_ = false;
  has_counted_alone_ = false;
  problem_ = CountProblem::None;
  count_ = 0;
  counts_.reset();
}

/// Whether any parameter has a gradient on this rank.
bool LossNormalization::has_gradients() const {
  return std::ranges::any_of(reducers_, [](const auto& reducer) {
    return std::ranges::any_of(reducer->parameters(), [](const ReducedParameter& parameter) {
      return parameter.tensor.grad().defined();
    });
  });
}

/// Equal on all ranks, since options and dtypes are.
bool LossNormalization::needs_agreement() const {
  if (context_.step.loss_reference) return false;
  if (context_.options.compression == Compression::fp16()) return true;
  return std::ranges::any_of(reducers_, [](const auto& reducer) {
    return std::ranges::any_of(reducer->parameters(), [](const ReducedParameter& parameter) {
      return parameter.tensor.scalar_type() == at::kHalf;
    });
  });
}

/// In the first step, before anything is reduced. Collective and blocking.
void LossNormalization::agree_on_reference(std::int64_t count) {
  CountRows all({.count = count, .is_active = 1}, context_.set,
                context_.prefix + ".first backward(loss_sum, count)");
  all.wait();
  const double passes = context_.options.backward_passes_per_step;
  set_reference(power_of_two_near(static_cast<double>(all.total()) * passes / all.active_ranks()));
  if (count_ == 0) return;
  const at::NoGradGuard no_grad;  // earlier passes, under no_sync, did not divide by the reference
  for (const auto& reducer : reducers_) {
    for (const ReducedParameter& parameter : reducer->parameters()) {
      if (at::Tensor gradient = parameter.tensor.grad(); gradient.defined()) {
        gradient.mul_(1.0 / reference());
      }
    }
  }
}

CountRow LossNormalization::own_row() const {
  const PassKinds& own = context_.step.own_passes;
  return {.count = count_,
          .is_active = context_.step.is_active,
          .has_counted = own.counted,
          .has_uncounted = own.uncounted,
          .problem = problem_,
          .wrong_count = wrong_count_};
}

void LossNormalization::begin() {
  forget_dropped();
  if (!context_.step.own_passes.counted) return;
  if (needs_agreement()) agree_on_reference(count_);
  counts_.emplace(own_row(), context_.set, context_.prefix + ".counts");
}

void LossNormalization::finish(bool have_succeeded, bool are_dropped) {
  factor_ = 1.0;
  if (context_.step.has_any_counted && !counts_) {  // only other ranks have counted
    counts_.emplace(own_row(), context_.set, context_.prefix + ".counts");
  }
  std::optional<CountRows> counts = std::exchange(counts_, std::nullopt);
  restart();
  has_counted_ = counts.has_value();
  if (!counts) return;
  try {
    counts->wait();
  } catch (const Error&) {
    if (have_succeeded) throw;
  }
  if (!have_succeeded) return;
  if (!are_dropped) require_consistent(*counts);
  const auto total = static_cast<double>(counts->total());
  if (total == 0.0) return;  // all gradients on all ranks are zero
  const int active = counts->active_ranks();
  factor_ = reference() / total;
  if (context_.options.op == ReduceOp::Average) {
    const bool is_active_mean = context_.options.join_divisor == JoinDivisor::Active;
    factor_ *= is_active_mean ? active : context_.set.size();
  }
  set_reference(power_of_two_near(total / active));
}

/// Rescales residuals, since earlier gradients were divided by the old reference.
void LossNormalization::set_reference(std::optional<double> reference) {
  const double before = this->reference();
  context_.step.loss_reference = reference;
  if (this->reference() != before) reducers_.rescale_residuals(before / this->reference());
}

/// Clears gradients before it throws, so that they cannot be used.
void LossNormalization::require_consistent(const CountRows& counts) {
  try {
    counts.require_consistent();
  } catch (const Error&) {
    reducers_.clear_gradients();
    context_.step.phases.finish(/*has_succeeded=*/false);
    throw;
  }
}

void LossNormalization::normalize() { scale(std::exchange(factor_, 1.0)); }

void LossNormalization::finish_alone() {
  forget_dropped();
  has_counted_ = context_.step.own_passes.counted;
  const CountRows own(own_row(), context_.set);
  restart();
  if (!has_counted_) return;
  require_consistent(own);
  if (own.total() > 0) scale(reference() / static_cast<double>(own.total()));
}

void LossNormalization::scale(double factor) {
  if (factor == 1.0) return;
  const at::NoGradGuard no_grad;
  for (at::Tensor gradient : reducers_.gradients()) gradient.mul_(factor);
}

}  // namespace kolo::train
