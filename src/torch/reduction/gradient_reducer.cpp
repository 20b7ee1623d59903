#include "torch/reduction/gradient_reducer.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

#include "kolo/error.hpp"
#include "kolo/tensor_collectives.hpp"
#include "torch/tensors/tensor_memory.hpp"

namespace kolo::tensors {
namespace {

using Clock = std::chrono::steady_clock;

std::vector<at::Tensor> tensors_of(const std::vector<ReducedParameter>& parameters) {
  std::vector<at::Tensor> tensors;
  for (const ReducedParameter& parameter : parameters) tensors.push_back(parameter.tensor);
  return tensors;
}

std::vector<std::string> names_of(const std::vector<ReducedParameter>& parameters) {
  std::vector<std::string> names;
  for (const ReducedParameter& parameter : parameters) names.push_back(parameter.name);
  return names;
}

}  // namespace

GradientReducer::GradientReducer(std::vector<ReducedParameter> parameters,
                                 const DistributedOptimizerOptions& options, const ShardSets& sets,
                                 const BucketHook& hook, StepState& step, std::string prefix,
                                 std::function<void()> before_gradient)
    : parameters_(std::move(parameters)),
      tensors_(tensors_of(parameters_)),
      options_(options),
      sets_(sets),
      hook_(hook),
      step_(step),
      prefix_(std::move(prefix)),
      watch_(tensors_, names_of(parameters_)),
      is_sparse_(parameters_.size()),
      arrived_(parameters_.size()) {
  lay_out(ArrivalOrder::completed({}, parameters_.size()));
  hooks_.emplace(
      tensors_,
      [this, before_gradient = std::move(before_gradient)](std::size_t index) {
        before_gradient();
        check_arrival(index);
      },
      [this](std::size_t index) {
        try {
          take_gradient(index);
        } catch (...) {
          step_.is_in_backward = false;  // the error ends it
          throw;
        }
      });
}

void GradientReducer::reset(std::size_t bucket) {
  expect_gradients(bucket);
  states_[bucket].submissions = 0;
  states_[bucket].in_flight.reset();
  states_[bucket].is_handed_out = false;
  states_[bucket].sparse.clear();
}

void GradientReducer::expect_gradients(std::size_t bucket) {
  const auto members = static_cast<int>(buckets_->buckets()[bucket].members.size());
  states_[bucket].missing = rounds_ > 1 ? members : members * options_.backward_passes_per_step;
}

// --- on the thread of backward() ---

/// Before the gradient is added: one that comes too late would change memory that is being reduced.
void GradientReducer::check_arrival(std::size_t index) {
  std::string wrong;
  if (step_.is_synchronized) {
    wrong = "got a gradient after synchronize(). Call step() or zero_grad() first.";
  } else if ((rounds_ == 1 && states_[bucket_of_[index]].in_flight) ||
             (step_.no_sync == 0 && arrivals_[index] == options_.backward_passes_per_step)) {
    wrong = "got a gradient more often than backward_passes_per_step = " +
            std::to_string(options_.backward_passes_per_step) +
            " times since the last step(). Call step() or zero_grad() of the DistributedOptimizer, "
            "not of the wrapped one, after so many backward passes, or raise it.";
  } else {
    return;
  }
  step_.is_in_backward = false;  // the error ends it
  throw InvalidArgument("DistributedOptimizer: parameter '" + parameters_[index].name + "' " +
                        wrong);
}

void GradientReducer::take_gradient(std::size_t index) {
  if (step_.no_sync > 0) return;
  if (!follows_arrival_) arrived_.note(index, tensors_[index].grad().is_sparse());
  if (step_.first_gradient == Clock::time_point{}) step_.first_gradient = Clock::now();
  // While it is in the cache.
  if (!recycles_ || has_its_slot(bucket_of_[index])) buckets_->adopt(index);
  note_stream(states_[bucket_of_[index]]);
  ++arrivals_[index];
  watch_.remember(index);
  const bool is_another = is_new_[index];
  is_new_[index] = true;
  if (rounds_ > 1 && is_another) return;  // adds to one that waits for others of its bucket
  if (--states_[bucket_of_[index]].missing > 0) return;
  step_.times.last_gradient = seconds(Clock::now());
  submit_what_is_ready(bucket_of_[index]);
}

/// backward() runs on the streams that forward() ran on.
void GradientReducer::note_stream(BucketState& state) const {
  const ProgramStream stream = ProgramStream::current(buckets_->device());
  if (std::ranges::find(state.streams, stream) == state.streams.end()) {
    state.streams.push_back(stream);
  }
}

/// Whether the memory of a bucket is its own by now, until it is submitted: it comes next there,
/// and the one before is over. That one gives its memory up here where it need not be waited for.
bool GradientReducer::has_its_slot(std::size_t bucket) {
  const std::size_t slots = passing_.size();
  // On a GPU there is no cache to gain from, and backward()'s stream would wait.
  if (!buckets_->device().is_cpu()) return false;
  if (rounds_ > 1 || bucket < next_ || bucket >= next_ + slots) return false;
  if (bucket < slots) return true;
  BucketState& before = states_[bucket - slots];
  if (!before.is_handed_out && before.in_flight->is_over()) {
    try {
      hand_out(bucket - slots);
    } catch (...) {
      if (!first_error_) first_error_ = std::current_exception();
      step_.has_failed = true;
      throw;
    }
  }
  return before.is_handed_out;
}

void GradientReducer::submit_what_is_ready(std::size_t bucket) {
  advance();
  if (!recycles_) return submit(bucket);
  const std::size_t all = states_.size() * static_cast<std::size_t>(rounds_);
  while (next_ < all && states_[next_ % states_.size()].missing <= 0) {
    if (const std::exception_ptr error = submit_next()) {
      step_.has_failed = true;
      std::rethrow_exception(error);
    }
  }
}

/// Begins what waits for a part of it, and need not wait any more.
void GradientReducer::advance() {
  if (sets_.replicas == nullptr) return;
  for (BucketState& state : states_) {
    if (state.in_flight && !state.is_handed_out) state.in_flight->advance();
  }
}

/// The next bucket in its turn, when the memory that it takes is free. Returns the error of what
/// was there before: all ranks submit all buckets, whatever becomes of one.
std::exception_ptr GradientReducer::submit_next() {
  const std::size_t bucket = next_ % states_.size();
  std::exception_ptr error;
  const std::size_t slots = passing_.size();
  for (std::size_t i = bucket % slots; i < states_.size(); i += slots) {
    if (!states_[i].in_flight || states_[i].is_handed_out) continue;
    try {
      hand_out(i);
    } catch (...) {
      error = std::current_exception();
    }
  }
  if (!first_error_) first_error_ = error;
  submit(bucket);
  ++next_;
  for (const Bucket::Member& member : buckets_->buckets()[bucket].members) {
    is_new_[member.parameter] = false;
  }
  expect_gradients(bucket);
  return error;
}

void GradientReducer::submit(std::size_t bucket) {
  BucketState& state = states_[bucket];
  const Bucket& plan = buckets_->buckets()[bucket];
  for (const ProgramStream& stream : state.streams) stream.come_before_current();
  const std::vector<at::Tensor> replaced = buckets_->complete(plan, step_.is_active);
  for (const ProgramStream& stream : state.streams) stream.come_behind_current();
  state.streams.clear();
  if (recycles_) buckets_->drop_gradients(plan);
  if (step_.first_gradient == Clock::time_point{}) step_.first_gradient = Clock::now();
  state.submitted = Clock::now();
  state.is_handed_out = false;
  ++state.submissions;
  const std::string name =
      prefix_ + ".bucket." + std::to_string(layouts_) + "." + std::to_string(bucket);
  if (shards_) {
    state.in_flight.emplace(*buckets_, bucket, name, options_, sets_, destination(bucket));
  } else {
    state.in_flight.emplace(*buckets_, bucket, name, options_, hook_);
  }
  const std::vector<Bucket::Member>& members = plan.members;
  for (std::size_t i = 0; i < members.size(); ++i) {
    if (!is_sparse_[members[i].parameter]) continue;
    state.sparse.emplace_back(i, submit_sparse(members[i].parameter));
  }
}

/// Where this rank's part of a bucket goes: of later passes, to where it can be added from.
at::Tensor GradientReducer::destination(std::size_t bucket) {
  const at::Tensor& part = shards_->part(bucket);
  if (states_[bucket].submissions == 1) return part;
  at::Tensor& passing = passing_[bucket % passing_.size()];
  if (!passing.defined() || passing.numel() < part.numel() || passing.dtype() != part.dtype()) {
    passing = at::empty_like(part);
  }
  return passing.narrow(0, 0, part.numel());
}

TensorHandle GradientReducer::submit_sparse(std::size_t index) {
  const at::Tensor& gradient = tensors_[index].grad();
  at::Tensor own = gradient;
  if (!gradient.defined()) {
    std::vector<std::int64_t> shape = tensors_[index].sizes().vec();
    shape.front() = 0;
    const at::TensorOptions type = tensors_[index].options().requires_grad(false);
    own = at::sparse_coo_tensor(at::empty({1, 0}, type.dtype(at::kLong)), at::empty(shape, type),
                                tensors_[index].sizes());
  } else if (!gradient.is_sparse() || gradient.sparse_dim() != 1) {
    own = gradient.to_dense().to_sparse(1);  // rows, as on all ranks
  }
  AllreduceOptions options;
  options.op = options_.op;
  options.join_divisor = options_.join_divisor;
  options.process_set = options_.process_set;
  options.name = prefix_ + ".sparse." + std::to_string(layouts_) + "." + std::to_string(index);
  return sparse_allreduce_async(own, options);
}

// --- on the thread of step() ---

void GradientReducer::submit_rest() {
  if (recycles_) {
    while (next_ < states_.size() * static_cast<std::size_t>(rounds_)) submit_next();
    return;
  }
  for (std::size_t i = 0; i < states_.size(); ++i) {
    if (!states_[i].in_flight) submit(i);
  }
}

std::exception_ptr GradientReducer::collect() {
  std::exception_ptr first_error = std::exchange(first_error_, nullptr);
  const auto attempt = [&](const auto& part) {
    try {
      part();
    } catch (...) {
      if (!first_error) first_error = std::current_exception();
    }
  };
  for (std::size_t i = 0; i < states_.size(); ++i) {
    const Bucket& bucket = buckets_->buckets()[i];
    const BucketInFlight& in_flight = *states_[i].in_flight;
    attempt([&] {
      hand_out(i);
      step_.times.buckets.push_back({bucket.size_bytes, seconds(states_[i].submitted),
                                     seconds(in_flight.started()), seconds(in_flight.ended())});
    });
    for (auto& [member, sum] : states_[i].sparse) {
      attempt([&, member = member, &sum = sum] { hand_out_sparse(bucket, member, sum); });
    }
    reset(i);
  }
  next_ = 0;
  arrivals_.assign(parameters_.size(), 0);
  is_new_.assign(parameters_.size(), false);
  return first_error;
}

/// Waits for a bucket and gives its gradients to those that are to be updated.
void GradientReducer::hand_out(std::size_t bucket) {
  BucketState& state = states_[bucket];
  if (state.is_handed_out) return;
  state.is_handed_out = true;  // or has failed
  state.in_flight->wait();
  const Bucket& plan = buckets_->buckets()[bucket];
  if (!shards_) {
    if (options_.shard != Shard::None) correct_divisor(bucket, buckets_->flat(plan));
    buckets_->hand_out(plan);
    return;
  }
  const at::Tensor arrived = destination(bucket);
  correct_divisor(bucket, arrived);
  const bool is_first = state.submissions == 1;
  if (!is_first) at::Tensor(shards_->part(bucket)).add_(arrived);
  shards_->hand_out(bucket, *buckets_, is_first);
  buckets_->drop_gradients(plan);
}

/// Ranks that have joined still take part, with zeros: the reduction has divided by all.
void GradientReducer::correct_divisor(std::size_t bucket, at::Tensor gradients) {
  const int size = options_.process_set->size();
  const double marks = buckets_->active(buckets_->buckets()[bucket]);
  const bool is_mean = !shards_ && !buckets_->has_flags_apart() && options_.op == ReduceOp::Average;
  step_.active_ranks = static_cast<int>(std::lround(is_mean ? marks * size : marks));
  if (options_.op == ReduceOp::Average && options_.join_divisor == JoinDivisor::Active &&
      step_.active_ranks > 0 && step_.active_ranks < size) {
    const at::NoGradGuard no_grad;
    gradients.mul_(static_cast<double>(size) / step_.active_ranks);
  }
}

void GradientReducer::hand_out_sparse(const Bucket& bucket, std::size_t member, TensorHandle& sum) {
  const at::Tensor result = sum.result();
  if (!buckets_->is_anywhere(bucket, member)) return;
  tensors_[bucket.members[member].parameter].mutable_grad() = result.coalesce();
}

std::size_t GradientReducer::optimizer_group_of(std::size_t bucket) const {
  return parameters_[buckets_->buckets()[bucket].members.front().parameter].optimizer_group;
}

Handle GradientReducer::gather_parameters(std::size_t bucket) const {
  OperationOptions options;
  options.process_set = sets_.divided;
  options.stream = ProgramStream::current(buckets_->device()).handle();
  return shards_->gather(bucket, prefix_ + ".gather." + std::to_string(bucket), options);
}

void GradientReducer::list_gradients(std::vector<at::Tensor>& gradients) const {
  if (shards_) return shards_->list_gradients(gradients);
  for (const at::Tensor& parameter : tensors_) {
    if (parameter.grad().defined()) gradients.push_back(parameter.grad());
  }
}

void GradientReducer::drop_gradients() {
  buckets_->drop_gradients();
  if (!shards_) return;
  for (std::size_t i = 0; i < states_.size(); ++i) shards_->drop_gradients(i);
}

void GradientReducer::forget_dropped() {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!is_dropped(i)) continue;
    const int arrivals = std::exchange(arrivals_[i], 0);
    states_[bucket_of_[i]].missing += rounds_ > 1 ? 1 : arrivals;
    is_new_[i] = false;
  }
}

bool GradientReducer::is_in_flight() const {
  return std::any_of(states_.begin(), states_.end(),
                     [](const BucketState& state) { return state.in_flight.has_value(); });
}

bool GradientReducer::has_arrivals() const {
  return std::any_of(arrivals_.begin(), arrivals_.end(), [](int count) { return count > 0; });
}

bool GradientReducer::is_dropped(std::size_t index) const {
  if (arrivals_[index] == 0) return false;
  if (!recycles_) return !buckets_->is_adopted(index);
  return is_new_[index] && !tensors_[index].grad().defined();
}

bool GradientReducer::has_dropped() const {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (is_dropped(i)) return true;
  }
  return false;
}

bool GradientReducer::has_gradients() const {
  if (shards_) return true;  // or other ranks have some: no program can drop them
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (buckets_->is_adopted(i)) return true;
  }
  return false;
}

std::string GradientReducer::changed_since_arrival() const {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (arrivals_[i] > 0 && watch_.has_changed(i)) return parameters_[i].name;
  }
  return {};
}

double GradientReducer::seconds(Clock::time_point point) const {
  return std::chrono::duration<double>(point - step_.first_gradient).count();
}

}  // namespace kolo::tensors
