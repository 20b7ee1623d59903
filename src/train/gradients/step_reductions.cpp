#include "train/gradients/step_reductions.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

#include "insight/recorder.hpp"
#include "kolo/error.hpp"
#include "kolo/torch/tensor_collectives.hpp"
#include "runtime/engine/engine.hpp"
#include "train/tensors/parameter_storage.hpp"

namespace kolo::train {

namespace {

at::Tensor no_rows(const at::Tensor& parameter) {
  std::vector<std::int64_t> shape = parameter.sizes().vec();
  shape.front() = 0;
  const at::TensorOptions type = parameter.options().requires_grad(false);
  return at::sparse_coo_tensor(at::empty({1, 0}, type.dtype(at::kLong)), at::empty(shape, type),
                               parameter.sizes());
}

/// Starts the sparse all-reduce of a parameter's gradient, which this rank may lack, under `name`.
TensorHandle reduce_sparse_gradient(const at::Tensor& parameter,
                                    const DistributedOptimizerOptions& options, std::string name) {
  at::Tensor gradient = parameter.grad();
  if (!gradient.defined()) {
    gradient = no_rows(parameter);
  } else if (!gradient.is_sparse() || gradient.sparse_dim() != 1) {
    gradient = gradient.to_dense().to_sparse(1);  // rows, as on all ranks
  }
  return sparse_allreduce_async(gradient.detach(), {.op = options.op,
                                                    .join_divisor = options.join_divisor,
                                                    .name = std::move(name),
                                                    .process_set = options.process_set});
}

}  // namespace

StepReductions::StepReductions(ReductionSetup setup, GradientBuckets& buckets, Residuals& residuals,
                               ReducedGradients& reduced, std::vector<std::string> names,
                               std::vector<std::string> parameter_names)
    : setup_(setup),
      buckets_(buckets),
      residuals_(residuals),
      reduced_(reduced),
      names_(std::move(names)),
      parameter_names_(std::move(parameter_names)),
      states_(buckets.buckets().size()) {
  buckets_.set_refusals(parameter_names_);
}

StepReductions::~StepReductions() {
  for (std::size_t i = 0; i < states_.size(); ++i) {
    if (states_[i].reduction && !states_[i].is_complete) {
      buckets_.clear_gradients(buckets_.buckets()[i]);
    }
  }
}

void StepReductions::note_gradient(std::size_t bucket) {
  StepState::Clock::time_point& first = states_[bucket].first_gradient;
  if (first == StepState::Clock::time_point{}) first = StepState::Clock::now();
  std::vector<ProgramStream>& streams = states_[bucket].streams;
  const ProgramStream stream = ProgramStream::current(buckets_.device());
  if (std::ranges::find(streams, stream) == streams.end()) streams.push_back(stream);
}

void StepReductions::submit(std::size_t bucket) {
  State& state = states_[bucket];
  const Bucket& plan = buckets_.buckets()[bucket];
  for (const ProgramStream& stream : state.streams) stream.order_before_current();
  const std::vector<at::Tensor> replaced =
      reduced_.fill(buckets_, plan, setup_.step.flags(), factor());
  for (const ProgramStream& stream : state.streams) stream.order_after_current();
  state.streams.clear();
  setup_.step.start_clock();
  state.submitted = StepState::Clock::now();
  const bool is_first = state.submissions == 0;
  const std::string& name = names_[bucket];
  try {
    const Coding coding{setup_.compression, begin_residual(bucket)};
    state.reduction = reduced_.submit(buckets_, bucket, name, setup_.options, coding,
                                      bound_hook(bucket, coding.residual), is_first);
  } catch (...) {
    undo_factor(plan);  // the bucket is submitted again
    throw;
  }
  note_bucket(state, name);
  // Not above, where the submission may throw.
  state.is_complete = false;
  ++state.submissions;
  reduced_.lend_memory(buckets_, plan);
  buckets_.refuse(plan, setup_.options.reads_in_flight ? Refused::Writes : Refused::Access);
  setup_.step.phases.submit();
  for (std::size_t i = 0; i < plan.members.size(); ++i) {
    if (buckets_.is_sparse(plan.members[i].parameter)) submit_sparse(bucket, i);
  }
  if (!state.sparse_error) return;
  setup_.step.phases.fail();
  std::rethrow_exception(state.sparse_error);
}

/// For traces: a span that leads to the reduction `name`.
void StepReductions::note_bucket(State& state, const std::string& name) {
  insight::Recorder& recorder = setup_.sets.sharded->engine()->recorder();
  insight::Event event{.kind = insight::Event::Kind::Bucket, .step = recorder.activity().step};
  event.time = insight::time_of(state.submitted);
  const auto first = std::exchange(state.first_gradient, {});
  event.begin = std::min(event.time, insight::time_of(first));
  if (first == StepState::Clock::time_point{}) event.begin = event.time;  // no gradient came
  recorder.add(event, name);
}

/// Starts the reduction of a sparse gradient. A stand-in that refuses access replaces it meanwhile.
/// Keeps the bucket's first error: other ranks wait for its other sparse gradients, and finish()
/// must not take this rank's own gradient for a reduced one.
void StepReductions::submit_sparse(std::size_t bucket, std::size_t member) {
  const std::size_t parameter = buckets_.buckets()[bucket].members[member].parameter;
  at::Tensor& gradient = buckets_.parameters()[parameter].mutable_grad();
  State& state = states_[bucket];
  keep_first_error(state.sparse_error, [&] {
    state.sparse.push_back(
        {member, gradient,
         reduce_sparse_gradient(buckets_.parameters()[parameter], setup_.options,
                                names_[bucket] + ".sparse." + std::to_string(member))});
    if (gradient.defined()) {
      gradient = make_stand_in(gradient, refusal_of_gradient(parameter_names_[parameter]));
    }
  });
}

/// The residual for a reduction that begins; undefined if its codec or hook has no error feedback.
/// A joined rank contributes zeros, and keeps its residual until it trains again.
at::Tensor StepReductions::begin_residual(std::size_t bucket) {
  const Bucket& plan = buckets_.buckets()[bucket];
  if (setup_.hook) return setup_.hook.error_feedback ? residuals_.begin(bucket) : at::Tensor();
  if (!setup_.compression.has_codec(plan)) return {};
  buckets_.zero_gaps(plan);
  at::Tensor residual = setup_.step.is_active ? residuals_.begin(bucket) : at::Tensor();
  const ProcessSet& set = *setup_.options.process_set;
  const int encoders =
      setup_.compression.is_piecewise() ? set.engine()->node_places().node_count() : set.size();
  if (!residual.defined() || encoders > 1) return residual;
  // A single rank or node encodes nothing, but may have loaded the residuals of several.
  const at::NoGradGuard no_grad;
  const auto begin = static_cast<std::int64_t>(residuals_.part(bucket).begin);
  buckets_.flat(plan).narrow(0, begin, residual.numel()).add_(residual);
  residual.zero_();
  return {};
}

BoundHook StepReductions::bound_hook(std::size_t bucket, const at::Tensor& residual) const {
  if (!setup_.hook) return {};
  return [this, bucket, residual](const at::Tensor& gradients) {
    return setup_.hook.reduce(bucket_for_hook(bucket, gradients, residual));
  };
}

GradientBucket StepReductions::bucket_for_hook(std::size_t bucket, const at::Tensor& gradients,
                                               const at::Tensor& residual) const {
  const Bucket& plan = buckets_.buckets()[bucket];
  GradientBucket given{.index = bucket,
                       .name = names_[bucket],
                       .gradients = gradients,
                       .step = setup_.steps,
                       .process_set = setup_.options.process_set};
  std::vector<std::size_t> members;
  for (std::size_t i = 0; i < plan.members.size(); ++i) {
    const auto& [parameter, offset] = plan.members[i];
    if (buckets_.is_sparse(parameter)) continue;
    const at::Tensor& tensor = buckets_.parameters()[parameter];
    const auto first = static_cast<std::int64_t>((offset - plan.offset) / size_of(plan.dtype));
    const auto part_of = [&](const at::Tensor& all) {
      return all.narrow(0, first, tensor.numel()).view(tensor.sizes());
    };
    given.parameters.push_back(tensor);
    given.parameter_names.push_back(parameter_names_[parameter]);
    given.views.push_back(part_of(gradients));
    members.push_back(i);
    if (residual.defined()) given.residuals.push_back(part_of(residual));
  }
  given.is_present = [this, &plan, members = std::move(members)](std::size_t i) {
    return buckets_.is_present(plan, members[i]);
  };
  return given;
}

void StepReductions::advance() {
  if (setup_.sets.replicas == nullptr) return;
  for (State& state : states_) {
    if (state.reduction && !state.is_complete) state.reduction->advance();
  }
}

void StepReductions::complete(std::size_t bucket) {
  State& state = states_[bucket];
  if (state.is_complete) return;
  state.is_complete = true;  // even if it fails
  const Bucket& plan = buckets_.buckets()[bucket];
  try {
    state.reduction->wait();
  } catch (...) {
    buckets_.refuse(plan, Refused::Nothing);
    if (buckets_.plan().slots == 0) undo_factor(plan);  // others use the slots since
    throw;
  }
  buckets_.refuse(plan, Refused::Nothing);
  if (buckets_.has_any_counted(plan)) setup_.step.has_any_counted = true;
  if (plan.has_digest && setup_.step.digest && buckets_.has_unequal_digests(plan)) {
    setup_.step.digests_differ = true;
  }
  const bool is_first = state.submissions == 1;
  if (setup_.joined_take_part || factor() != 1.0) {
    correct_divisor(bucket, reduced_.result(buckets_, bucket, is_first));
  }
  reduced_.assign(buckets_, bucket, is_first);
}

double StepReductions::factor() const {
  return factor_in_copy(buckets_, setup_.options, static_cast<bool>(setup_.hook));
}

void StepReductions::undo_factor(const Bucket& bucket) {
  if (factor() == 1.0) return;
  std::exception_ptr ignored;  // the reduction's error is being thrown
  keep_first_error(ignored, [&] {
    const at::NoGradGuard no_grad;
    buckets_.flat(bucket).div_(factor());
  });
}

/// Joined ranks contribute zeros, so the reduction has divided by all ranks.
void StepReductions::correct_divisor(std::size_t bucket, at::Tensor gradients) {
  const DistributedOptimizerOptions& options = setup_.options;
  const int size = options.process_set->size();
  const double activity = buckets_.reduced_activity(buckets_.buckets()[bucket]);
  const bool is_mean =
      states_[bucket].reduction->has_flags_inside() && options.op == ReduceOp::Average;
  const int active = static_cast<int>(std::lround(is_mean ? activity * size : activity));
  if (options.op == ReduceOp::Average && options.join_divisor == JoinDivisor::Active &&
      active > 0 && active < size) {
    const at::NoGradGuard no_grad;
    gradients.mul_(static_cast<double>(size) / active);
  }
}

std::exception_ptr StepReductions::finish() {
  std::exception_ptr first_error;
  StepState& step = setup_.step;
  for (std::size_t i = 0; i < states_.size(); ++i) {
    State& state = states_[i];
    const Bucket& bucket = buckets_.buckets()[i];
    if (!state.reduction) {
      state = {};
      continue;
    }
    keep_first_error(first_error, [&] {
      complete(i);
      step.times.buckets.push_back({bucket.size_bytes, step.seconds_until(state.submitted),
                                    step.seconds_until(state.reduction->started()),
                                    step.seconds_until(state.reduction->ended())});
    });
    for (SparseReduction& reduction : state.sparse) {
      keep_first_error(first_error, [&] { assign_sparse(bucket, reduction); });
    }
    keep_first_error(first_error, [&] {
      if (state.sparse_error) std::rethrow_exception(state.sparse_error);
    });
    state = {};
  }
  return first_error;
}

void StepReductions::assign_sparse(const Bucket& bucket, SparseReduction& reduction) {
  const std::size_t parameter = bucket.members[reduction.member].parameter;
  at::Tensor& gradient = buckets_.parameters()[parameter].mutable_grad();
  gradient = reduction.own;  // also if the reduction has failed
  const at::Tensor sum = reduction.sum.result();
  if (buckets_.is_present(bucket, reduction.member)) gradient = sum.coalesce();
}

}  // namespace kolo::train
