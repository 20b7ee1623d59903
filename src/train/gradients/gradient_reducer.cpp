#include "train/gradients/gradient_reducer.hpp"

#include <algorithm>
#include <utility>

#include "kolo/error.hpp"

namespace kolo::train {

GradientReducer::GradientReducer(std::vector<ReducedParameter> parameters,
                                 std::vector<ReducedParameter> frozen, const ReductionSetup& setup,
                                 std::string prefix, std::function<void()> before_gradient)
    : parameters_(std::move(parameters)),
      tensors_(tensors_of(parameters_)),
      frozen_(std::move(frozen)),
      setup_(setup),
      prefix_(std::move(prefix)),
      watch_(parameters_),
      layouts_(make_bucket_layouts({parameters_, tensors_, frozen_, watch_}, setup_, prefix_)) {
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
        reduced().remove_stand_in(parameter);
      },
      [this](std::size_t parameter) { take_gradient(parameter); });
}

/// Checked before the gradient is added, since that could change memory that is being reduced.
void GradientReducer::require_expected(std::size_t parameter) const {
  const Arrivals& arrivals = now().arrivals;
  std::string problem;
  if (setup_.step.phases.current() == StepPhase::Synchronized) {
    problem = "got a gradient after synchronize(). Call step() or zero_grad() first.";
  } else if ((!now().reduces_by_pass &&
              now().reductions.is_submitted(arrivals.bucket_of(parameter))) ||
             (setup_.step.no_sync == 0 && arrivals.count(parameter) == passes())) {
    problem = "got more than backward_passes_per_step = " + std::to_string(passes()) +
              " gradients since the last step(). " + cause_of_surplus(parameter);
  } else if (reduced().is_gone(parameter)) {
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
           "call zero_grad() after it. Or a reentrant activation checkpoint has run a module that "
           "the forward pass uses several times: make it non-reentrant.";
  }
  if (now().arrivals.count(parameter) == 0) {
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
  if (step.no_sync > 0 || passes() > 1) now().buckets.widen(parameter);
  if (step.no_sync > 0) return;
  layouts_->record(parameter, tensors_[parameter].grad().is_sparse());
  step.start_clock();
  const std::size_t bucket = now().arrivals.bucket_of(parameter);
  // On the CPU now, while it is in the cache; on a GPU with its whole bucket, in few launches.
  const bool is_cached = now().buckets.device().is_cpu();
  if (is_cached && now().pipeline->is_writable(bucket)) now().buckets.move_in({parameter});
  now().reductions.note_gradient(bucket);
  watch_.remember(parameter);
  if (!now().arrivals.add(parameter)) return;
  step.times.last_gradient = step.seconds_until(StepState::Clock::now());
  now().reductions.advance();
  now().pipeline->bucket_arrived(bucket);
}

// --- on the thread of step() ---

void GradientReducer::submit_rest() {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (is_dropped(i)) dropped_.push_back(i);
  }
  now().pipeline->submit_rest();
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
  const std::exception_ptr in_backward = now().pipeline->restart();
  const std::exception_ptr at_end = now().reductions.finish();
  now().arrivals.restart();
  if (in_backward) return in_backward;
  return at_end ? at_end : replaced;
}

void GradientReducer::for_each_gradient(const GradientVisitor& visit) {
  reduced().visit([&](std::size_t parameter, at::Tensor& gradient) {
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
  });
}

void GradientReducer::clear_gradients() {
  reduced().clear(now().buckets);
  dropped_.clear();
}

// --- changes of gradients and parameters by the program ---

/// Whether the gradients of the parameter that have arrived are in a submitted bucket.
bool GradientReducer::is_submitted(std::size_t parameter) const {
  const Arrivals& arrivals = now().arrivals;
  if (now().shares_slots()) return arrivals.has(parameter) && !arrivals.is_pending(parameter);
  return now().reductions.is_submitted(arrivals.bucket_of(parameter));
}

bool GradientReducer::is_dropped(std::size_t parameter) const {
  return now().arrivals.has(parameter) && !tensors_[parameter].grad().defined();
}

/// Whether the program has put another gradient in place of one that is being reduced.
bool GradientReducer::is_replaced(std::size_t parameter) const {
  if (!tensors_[parameter].grad().defined() || !is_submitted(parameter)) return false;
  return !buckets().is_in_place(parameter) && !reduced().is_in_place(buckets(), parameter);
}

bool GradientReducer::has_dropped() const {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (is_dropped(i)) return true;
  }
  return false;
}

bool GradientReducer::has_kept() const {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (now().arrivals.has(i) && !is_dropped(i)) return true;
  }
  return false;
}

void GradientReducer::forget_dropped() {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (is_dropped(i) && !is_submitted(i)) now().arrivals.drop(i);
  }
}

void GradientReducer::drop_undefined(std::vector<std::string>& names) {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!tensors_[i].grad().defined() && reduced().is_gone(i)) dropped_.push_back(i);
    if (!reduced().is_ignored(i)) continue;
    throw InvalidArgument("DistributedOptimizer: parameter '" + parameters_[i].name +
                          "' has got another gradient after synchronize(), but the reduced one is "
                          "sharded, so the change would be lost. Change it in "
                          "for_each_gradient().");
  }
  // One that was dropped before its reduction may be in the list twice, which depends on timing.
  std::ranges::sort(dropped_);
  dropped_.erase(std::unique(dropped_.begin(), dropped_.end()), dropped_.end());
  for (const std::size_t parameter : std::exchange(dropped_, {})) {
    reduced().drop(parameter);
    names.push_back(parameters_[parameter].name);
  }
}

void GradientReducer::drop(const std::string& name) {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (parameters_[i].name == name) reduced().drop(i);
  }
}

bool GradientReducer::has_gradients() const {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (reduced().is_in_place(buckets(), i)) return true;
  }
  return false;
}

std::string GradientReducer::changed_since_arrival() const {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (now().arrivals.count(i) > 0 && watch_.has_changed(i)) return parameters_[i].name;
  }
  return {};
}

}  // namespace kolo::train
