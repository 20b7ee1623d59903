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
  hooks_.emplace(
      tensors_,
      [=, this](std::size_t parameter) {
        before_gradient();
        require_expected(parameter);
        // A new gradient replaces that of the last pass, which is in this rank's shard.
        if (withheld_) withheld_->take_away(parameter);
      },
      [this](std::size_t parameter) { take_gradient(parameter); });
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
              " gradients since the last step(). " + cause_of_surplus(parameter);
  } else if (withheld_ && withheld_->is_gone(parameter)) {
    problem =
        "got another gradient after that of an earlier pass, which is reduced already, was dropped "
        "or replaced. Do that in for_each_gradient(), or set Accumulation::Local.";
  } else {
    return;
  }
  throw InvalidArgument("DistributedOptimizer: parameter '" + parameters_[parameter].name + "' " +
                        problem);
}

std::string GradientReducer::cause_of_surplus(std::size_t parameter) const {
  if (setup_.step.backward.has_failed()) {
    return "An earlier backward() has ended with an exception, and its gradients are still there: "
           "call zero_grad() after it.";
  }
  if (layout_->arrivals.count(parameter) == 0) {
    return "An earlier backward() has not used it, and its bucket was reduced without it. Run all "
           "but the last backward() of a step under no_sync(), or set backward_passes_per_step.";
  }
  if (watch_.has_changed(parameter)) {
    return "It has changed since its gradient arrived: call step() of the DistributedOptimizer, "
           "not of the wrapped optimizer.";
  }
  return "After that many backward passes call step() or zero_grad(). To add up more, raise it, or "
         "run all but the last pass under no_sync().";
}

void GradientReducer::take_gradient(std::size_t parameter) {
  StepState& step = setup_.step;
  if (step.no_sync > 0 || passes() > 1) layout_->buckets.widen(parameter);
  if (step.no_sync > 0) return;
  if (arrived_) arrived_->record(parameter, tensors_[parameter].grad().is_sparse());
  step.start_clock();
  const std::size_t bucket = layout_->arrivals.bucket_of(parameter);
  // On the CPU now, while it is in the cache; on a GPU with its whole bucket, in few launches.
  const bool is_cached = layout_->buckets.device().is_cpu();
  if (is_cached && layout_->pipeline->is_writable(bucket)) layout_->buckets.move_in({parameter});
  layout_->reductions.note_stream(bucket);
  watch_.remember(parameter);
  if (!layout_->arrivals.add(parameter)) return;
  step.times.last_gradient = step.seconds_until(StepState::Clock::now());
  layout_->reductions.advance();
  layout_->pipeline->bucket_arrived(bucket);
}

// --- on the thread of step() ---

void GradientReducer::submit_rest() {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (is_dropped(i)) dropped_.push_back(i);
  }
  layout_->pipeline->submit_rest();
}

std::exception_ptr GradientReducer::finish() {
  std::exception_ptr replaced;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!is_replaced(i)) continue;
    replaced = std::make_exception_ptr(InvalidArgument(
        "DistributedOptimizer: the gradient of parameter '" + parameters_[i].name +
        "' was replaced while it was being reduced, so the new one is of this rank alone. Call "
        "synchronize() of the DistributedOptimizer before, or for_each_gradient() if it is "
        "sharded."));
    tensors_[i].mutable_grad().reset();
  }
  const std::exception_ptr in_backward = layout_->pipeline->restart();
  const std::exception_ptr at_end = layout_->reductions.finish();
  layout_->arrivals.restart();
  if (in_backward) return in_backward;
  return at_end ? at_end : replaced;
}

void GradientReducer::append_gradients(std::vector<at::Tensor>& gradients) const {
  if (shards_) return shards_->append_gradients(gradients);
  for (const at::Tensor& parameter : tensors_) {
    if (parameter.grad().defined()) gradients.push_back(parameter.grad());
  }
}

void GradientReducer::for_each_gradient(const GradientVisitor& visit) {
  const auto visit_one = [&](std::size_t parameter, at::Tensor& gradient) {
    const std::string& name = parameters_[parameter].name;
    const at::Tensor before = gradient;
    visit(name, gradient);
    if (!gradient.defined() ||
        (gradient.sizes() == before.sizes() && gradient.options().type_equal(before.options()))) {
      return;
    }
    gradient = before;
    throw InvalidArgument(
        "DistributedOptimizer: for_each_gradient() has replaced the gradient of "
        "parameter '" +
        name + "' by one of another shape, dtype or device.");
  };
  if (shards_) return shards_->for_each_gradient(visit_one);
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (tensors_[i].grad().defined()) visit_one(i, tensors_[i].mutable_grad());
  }
}

void GradientReducer::clear_gradients() {
  layout_->buckets.clear_gradients();
  dropped_.clear();
  if (!shards_) return;
  withheld_->take_away();
  for (std::size_t i = 0; i < buckets().buckets().size(); ++i) shards_->clear_gradients(i);
}

// --- changes of gradients and parameters by the program ---

/// Whether the gradients of the parameter that have arrived are in a submitted bucket.
bool GradientReducer::is_submitted(std::size_t parameter) const {
  const Arrivals& arrivals = layout_->arrivals;
  if (layout_->shares_slots())
    return arrivals.count(parameter) > 0 && !arrivals.is_pending(parameter);
  return layout_->reductions.is_submitted(arrivals.bucket_of(parameter));
}

bool GradientReducer::is_dropped(std::size_t parameter) const {
  return layout_->arrivals.count(parameter) > 0 && !tensors_[parameter].grad().defined();
}

/// Whether the program has put another gradient in place of one that is being reduced.
bool GradientReducer::is_replaced(std::size_t parameter) const {
  if (!tensors_[parameter].grad().defined() || !is_submitted(parameter)) return false;
  return !buckets().is_in_place(parameter) && !(withheld_ && withheld_->is_in_place(parameter));
}

bool GradientReducer::has_dropped() const {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (is_dropped(i)) return true;
  }
  return false;
}

bool GradientReducer::has_kept() const {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (layout_->arrivals.count(i) > 0 && !is_dropped(i)) return true;
  }
  return false;
}

void GradientReducer::forget_dropped() {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (is_dropped(i) && !is_submitted(i)) layout_->arrivals.drop(i);
  }
}

void GradientReducer::drop_undefined(std::vector<std::string>& names) {
  for (std::size_t i = 0; withheld_ && i < parameters_.size(); ++i) {
    const bool is_defined = tensors_[i].grad().defined();
    if (!is_defined && withheld_->is_gone(i)) dropped_.push_back(i);
    if (!is_defined || withheld_->is_in_place(i)) continue;
    throw InvalidArgument("DistributedOptimizer: parameter '" + parameters_[i].name +
                          "' has got another gradient after synchronize(), but the reduced one is "
                          "sharded, so the change would be lost. Change it in "
                          "for_each_gradient().");
  }
  for (const std::size_t parameter : std::exchange(dropped_, {})) {
    drop(parameter);
    names.push_back(parameters_[parameter].name);
  }
}

void GradientReducer::drop(const std::string& name) {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (parameters_[i].name == name) drop(i);
  }
}

void GradientReducer::drop(std::size_t parameter) {
  if (!shards_) return tensors_[parameter].mutable_grad().reset();
  withheld_->take_away(parameter);
  shards_->clear_gradients_of(parameter);
}

bool GradientReducer::has_gradients() const {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (withheld_ ? withheld_->is_in_place(i) : buckets().is_in_place(i)) return true;
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
