#include "torch/reduction/gradient_reducer.hpp"

#include <utility>

#include "kolo/error.hpp"
#include "torch/sharding/operator_watch.hpp"
#include "torch/tensors/parameter_storage.hpp"

namespace kolo::tensors {

GradientReducer::GradientReducer(std::vector<ReducedParameter> parameters,
                                 std::vector<ReducedParameter> frozen, const ReductionSetup& setup,
                                 std::string prefix, std::function<void()> before_gradient)
    : parameters_(std::move(parameters)),
      tensors_(tensors_of(parameters_)),
      frozen_(std::move(frozen)),
      setup_(setup),
      prefix_(std::move(prefix)),
      watch_(parameters_),
      is_sparse_(parameters_.size()),
      arrived_(parameters_.size()) {
  // An earlier optimizer may have had Shard::Full.
  for (const at::Tensor& parameter : tensors_) {
    if (is_gathered_on_use(parameter)) take_from_units(parameter);
    if (!is_full() && has_one_copy(parameter)) make_own_copy(parameter);
  }
  if (is_full()) {
    shard_at_once();
  } else {
    layout_ = std::make_unique<Layout>(
        *this,
        make_buckets(plan_of_gradients(plan(ArrivalOrder::completed({}, parameters_.size())))));
  }
  lay_out_residuals({});
  install_hooks(std::move(before_gradient));
}

// --- on the thread of backward() ---

/// An exception of a hook ends backward().
void GradientReducer::install_hooks(std::function<void()> before_gradient) {
  const auto guarded = [this](const auto& work) {
    try {
      work();
    } catch (...) {
      setup_.step.backward.end();
      throw;
    }
  };
  hooks_.emplace(
      tensors_,
      [=, this](std::size_t parameter) {
        before_gradient();
        guarded([&] { require_expected(parameter); });
      },
      [=, this](std::size_t parameter) { guarded([&] { take_gradient(parameter); }); });
}

/// Checked before the gradient is added, since that could change memory that is being reduced.
void GradientReducer::require_expected(std::size_t parameter) const {
  const Arrivals& arrivals = layout_->arrivals;
  std::string problem;
  if (setup_.step.phases.current() == StepPhase::Synchronized) {
    problem = "got a gradient after synchronize(). Call step() or zero_grad() first.";
  } else if ((!layout_->reduces_by_pass &&
              layout_->reductions.is_submitted(arrivals.bucket_of(parameter))) ||
             (setup_.step.no_sync == 0 && arrivals.count(parameter) == passes())) {
    problem = "got more than backward_passes_per_step = " + std::to_string(passes()) +
              " gradients since the last step(). After that many backward passes call step() or "
              "zero_grad() of the DistributedOptimizer, not of the wrapped optimizer, or raise it.";
  } else {
    return;
  }
  throw InvalidArgument("DistributedOptimizer: parameter '" + parameters_[parameter].name + "' " +
                        problem);
}

void GradientReducer::take_gradient(std::size_t parameter) {
  StepState& step = setup_.step;
  if (step.no_sync > 0 || passes() > 1) layout_->buckets.widen(parameter);
  if (step.no_sync > 0) return;
  if (arrived_) arrived_->record(parameter, tensors_[parameter].grad().is_sparse());
  step.start_clock();
  const std::size_t bucket = layout_->arrivals.bucket_of(parameter);
  // Now, while it is in the cache.
  if (layout_->pipeline->is_writable(bucket)) layout_->buckets.move_in(parameter);
  layout_->reductions.note_stream(bucket);
  watch_.remember(parameter);
  if (!layout_->arrivals.add(parameter)) return;
  step.times.last_gradient = step.seconds_until(StepState::Clock::now());
  layout_->reductions.advance();
  layout_->pipeline->bucket_arrived(bucket);
}

// --- on the thread of step() ---

std::exception_ptr GradientReducer::finish() {
  const std::exception_ptr in_backward = layout_->pipeline->restart();
  const std::exception_ptr at_end = layout_->reductions.finish();
  layout_->arrivals.restart();
  return in_backward ? in_backward : at_end;
}

void GradientReducer::append_gradients(std::vector<at::Tensor>& gradients) const {
  if (shards_) return shards_->append_gradients(gradients);
  for (const at::Tensor& parameter : tensors_) {
    if (parameter.grad().defined()) gradients.push_back(parameter.grad());
  }
}

void GradientReducer::clear_gradients() {
  layout_->buckets.clear_gradients();
  if (!shards_) return;
  for (std::size_t i = 0; i < buckets().buckets().size(); ++i) shards_->clear_gradients(i);
}

// --- changes of gradients and parameters by the program ---

bool GradientReducer::is_dropped(std::size_t parameter) const {
  if (layout_->arrivals.count(parameter) == 0) return false;
  if (!layout_->shares_slots()) return !buckets().is_in_place(parameter);
  return layout_->arrivals.is_pending(parameter) && !tensors_[parameter].grad().defined();
}

bool GradientReducer::has_dropped() const {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (is_dropped(i)) return true;
  }
  return false;
}

void GradientReducer::forget_dropped() {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (is_dropped(i)) layout_->arrivals.drop(i);
  }
}

bool GradientReducer::has_gradients() const {
  if (shards_) return true;  // on this rank or others; programs cannot drop them
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (buckets().is_in_place(i)) return true;
  }
  return false;
}

std::string GradientReducer::changed_since_arrival() const {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (layout_->arrivals.count(i) > 0 && watch_.has_changed(i)) return parameters_[i].name;
  }
  return {};
}

}  // namespace kolo::tensors
