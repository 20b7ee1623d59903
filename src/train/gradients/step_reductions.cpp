#include "train/gradients/step_reductions.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

#include "insight/recorder.hpp"
#include "kolo/error.hpp"
#include "kolo/torch/tensor_collectives.hpp"
#include "ops/kernels/pieces.hpp"
#include "ops/steps/coded_pieces.hpp"
#include "runtime/engine/engine.hpp"
#include "train/tensors/parameter_storage.hpp"
#include "train/tensors/tensor_memory.hpp"

namespace kolo::train {

std::uint64_t GradientCompression::allreduce_bytes(std::size_t count, int rank, int ranks) const {
  std::uint64_t bytes = 0;
  for (int other = 0; other < ranks; ++other) {
    if (other == rank) continue;
    const auto length = [&](int of) {
      return ops::piece_of(count, ranks, of, codec->block()).length;
    };
    bytes += ops::coded_bytes(*codec, length(other), 1);
    bytes += ops::coded_bytes(*codec, length(rank), ranks);
  }
  return bytes;
}

std::uint64_t GradientCompression::reduce_scatter_bytes(std::size_t count, int ranks) const {
  const auto n = static_cast<std::size_t>(ranks);
  return (n - 1) * ops::coded_bytes(*codec, count / n, 1);
}

namespace {

/// One reduction for each parameter: Adasum weighs ranks by the angle between their gradients.
Handle begin_adasum(const GradientBuckets& buckets, const Bucket& bucket,
                    const AllreduceOptions& options) {
  std::vector<InputOutput> gradients;
  for (const Bucket::Member& member : bucket.members) {
    if (buckets.is_sparse(member.parameter)) continue;
    const TensorView view{buckets.memory().data() + member.offset, bucket.dtype,
                          buckets.parameters()[member.parameter].sizes().vec(),
                          buckets.memory().device()};
    gradients.push_back({view, view});
  }
  return grouped_allreduce_async(gradients, options);
}

/// Runs `work`. Its exception becomes the first of several, unless there is one already.
template <class Work>
void keep_first_error(std::exception_ptr& first_error, const Work& work) {
  try {
    work();
  } catch (...) {
    if (!first_error) first_error = std::current_exception();
  }
}

float* data_of(const at::Tensor& residual) {
  return residual.defined() ? residual.mutable_data_ptr<float>() : nullptr;
}

AllreduceOptions reduction_of(const DistributedOptimizerOptions& options, Compression compression,
                              const std::string& name) {
  return {.op = options.op,
          .prescale = 1.0 / options.gradient_predivide_factor,
          .postscale = options.gradient_predivide_factor,
          .compression = std::move(compression),
          .join_divisor = options.join_divisor,
          .name = name,
          .process_set = options.process_set};
}

/// A separate reduction, which succeeds even if that of the gradients fails.
Handle begin_flags(const GradientBuckets& buckets, const Bucket& bucket, const std::string& name,
                   ProcessSet* process_set) {
  const at::Tensor& flags = buckets.flags_of(bucket);
  const AllreduceOptions options{.op = ReduceOp::Sum,
                                 .name = name + ".flags",
                                 .process_set = process_set,
                                 .keep_alive = std::make_shared<at::Tensor>(flags)};
  const TensorView view = view_of(flags, options.name);
  return allreduce_async(view, view, options);
}

}  // namespace

BucketReduction::BucketReduction(const GradientBuckets& buckets, std::size_t index,
                                 const std::string& name,
                                 const DistributedOptimizerOptions& options, const Coding& coding,
                                 const BoundHook& hook)
    : stream_(ProgramStream::current(buckets.device())) {
  const Bucket& bucket = buckets.buckets()[index];
  AllreduceOptions all = reduction_of(options, coding.compression.of(bucket), name);
  all.compression_scope = coding.compression.scope;
  all.stream = stream_.handle();
  const bool is_plain = !hook && options.op != ReduceOp::Adasum;
  if (is_plain && !buckets.has_separate_flags() && !coding.compression.encodes_whole(bucket)) {
    handle_ = allreduce_async(buckets.memory(), bucket.offset, bucket.count(), bucket.dtype, all);
    return;
  }
  handle_ = begin_flags(buckets, bucket, name, options.process_set);
  if (bucket.gradient_count() == 0) return;  // all are sparse
  if (is_plain) {
    all.residual = data_of(coding.residual);
    all.keep_alive = std::make_shared<at::Tensor>(coding.residual);
    gradients_ = allreduce_async(buckets.memory(), bucket.offset, bucket.gradient_count(),
                                 bucket.dtype, all);
    return;
  }
  if (!hook) {
    all.keep_alive = buckets.memory().owner();
    gradients_ = begin_adasum(buckets, bucket, all);
    return;
  }
  hook_target_ = buckets.flat(bucket);
  hook_ = hook(hook_target_);
}

BucketReduction::BucketReduction(const GradientBuckets& buckets, std::size_t index,
                                 std::string name, const DistributedOptimizerOptions& options,
                                 const Coding& coding, const ShardSets& sets,
                                 const at::Tensor& shard)
    : stream_(sets.replicas == nullptr ? ProgramStream::current(buckets.device())
                                       : ProgramStream::beside_current(buckets.device())) {
  const Bucket& bucket = buckets.buckets()[index];
  handle_ = begin_flags(buckets, bucket, name, options.process_set);
  if (bucket.gradient_count() == 0) return;
  AllreduceOptions scatter = reduction_of(options, coding.compression.of(bucket), name);
  scatter.process_set = sets.sharded.get();
  scatter.stream = stream_.handle();
  scatter.keep_alive = std::make_shared<std::pair<at::Tensor, at::Tensor>>(shard, coding.residual);
  const bool encodes_whole = coding.compression.encodes_whole(bucket);
  if (encodes_whole) scatter.residual = data_of(coding.residual);
  if (sets.replicas != nullptr) {
    pending_replica_sum_ = {shard, scatter};
    AllreduceOptions& sum = pending_replica_sum_->options;
    sum.compression = coding.compression.of_replicas(bucket);
    sum.residual = encodes_whole ? nullptr : data_of(coding.residual);
    sum.name = name + ".replicas";
    sum.process_set = sets.replicas.get();
    sum.op = scatter.op = ReduceOp::Sum;
    sum.prescale = scatter.postscale = 1.0;
    if (options.op == ReduceOp::Average) sum.postscale /= options.process_set->size();
  }
  gradients_ = reduce_scatter_async(buckets.memory(), bucket.offset,
                                    {static_cast<std::int64_t>(bucket.gradient_count())},
                                    view_of(shard, name), scatter);
}

void BucketReduction::advance() {
  if (!pending_replica_sum_ || !gradients_->is_ready()) return;
  try {
    gradients_->wait();  // does not block, but orders streams
  } catch (const Error&) {
    // The other nodes still wait for this rank; wait() throws the error again.
  }
  begin_replica_sum();
}

bool BucketReduction::is_ready() const {
  const auto is_done = [](const std::optional<Handle>& handle) {
    return !handle || handle->is_ready();
  };
  return handle_.is_ready() && is_done(gradients_) && !pending_replica_sum_ &&
         is_done(replica_sum_) && !hook_;
}

bool BucketReduction::wait_for(std::chrono::steady_clock::duration duration) {
  const auto deadline = std::chrono::steady_clock::now() + duration;
  for (Handle* const handle : {&handle_, gradients_ ? &*gradients_ : nullptr}) {
    if (handle == nullptr || handle->is_ready()) continue;
    const auto left = deadline - std::chrono::steady_clock::now();
    if (left <= left.zero()) return false;
    try {
      if (!handle->wait_for(left)) return false;
    } catch (const Error&) {
      // wait() throws it again.
    }
  }
  advance();
  const auto left = deadline - std::chrono::steady_clock::now();
  if (replica_sum_ && !replica_sum_->is_ready() && left > left.zero()) {
    try {
      replica_sum_->wait_for(left);
    } catch (const Error&) {
    }
  }
  return is_ready();
}

void BucketReduction::begin_replica_sum() {
  const TensorView view = view_of(pending_replica_sum_->shard, pending_replica_sum_->options.name);
  replica_sum_ = allreduce_async(view, view, pending_replica_sum_->options);
  pending_replica_sum_.reset();
}

void BucketReduction::wait() {
  // Waits for all operations, even after an error, since their memory and names are reused.
  std::exception_ptr first_error;
  keep_first_error(first_error, [&] { handle_.wait(); });
  if (gradients_) keep_first_error(first_error, [&] { gradients_->wait(); });
  // Even after an error: other nodes wait for it.
  if (pending_replica_sum_) keep_first_error(first_error, [&] { begin_replica_sum(); });
  if (replica_sum_) keep_first_error(first_error, [&] { replica_sum_->wait(); });
  stream_.order_before_current();
  if (first_error) std::rethrow_exception(first_error);
  if (hook_) take_hook_result();
}

void BucketReduction::take_hook_result() {
  const at::Tensor result = hook_->result();
  if (result.is_same(hook_target_)) return;
  if (!result.defined() || result.numel() != hook_target_.numel()) {
    throw InvalidArgument(
        "DistributedOptimizer: a bucket hook returned " +
        (result.defined() ? std::to_string(result.numel()) + " elements" : "no tensor") +
        " for a bucket of " + std::to_string(hook_target_.numel()) +
        ". It must return its reduced gradients, as many as it was given.");
  }
  const at::NoGradGuard no_grad;
  hook_target_.copy_(result.view_as(hook_target_));
}

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
                               const ParameterShards* shards, WithheldGradients* withheld,
                               std::vector<std::string> names,
                               std::vector<std::string> parameter_names)
    : setup_(setup),
      buckets_(buckets),
      residuals_(residuals),
      shards_(shards),
      withheld_(withheld),
      names_(std::move(names)),
      parameter_names_(std::move(parameter_names)),
      states_(buckets.buckets().size()),
      later_passes_(buckets.plan().slots) {
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
  const std::vector<at::Tensor> replaced = buckets_.fill(plan, setup_.step.flags(), withheld_);
  for (const ProgramStream& stream : state.streams) stream.order_after_current();
  state.streams.clear();
  setup_.step.start_clock();
  state.submitted = StepState::Clock::now();
  const bool is_first = state.submissions == 0;
  const std::string& name = names_[bucket];
  const BucketReduction::Coding coding{setup_.compression, begin_residual(bucket)};
  if (shards_ != nullptr) {
    state.reduction.emplace(buckets_, bucket, name, setup_.options, coding, setup_.sets,
                            destination(bucket, is_first));
  } else {
    state.reduction.emplace(buckets_, bucket, name, setup_.options, coding,
                            bound_hook(bucket, coding.residual));
  }
  note_bucket(state, name);
  // From here on: what is above may throw, and the bucket is then submitted again.
  state.is_complete = false;
  ++state.submissions;
  if (buckets_.plan().slots > 0) withhold_own(plan);
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

BucketReduction::BoundHook StepReductions::bound_hook(std::size_t bucket,
                                                      const at::Tensor& residual) const {
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

/// The memory for this rank's reduced shard. After the first pass it is separate memory, which is
/// then added to the shard.
at::Tensor StepReductions::destination(std::size_t bucket, bool is_first) {
  const at::Tensor& shard = shards_->gradient_shard(bucket);
  if (is_first) return shard;
  at::Tensor& later = later_passes_[bucket % later_passes_.size()];
  if (!later.defined() || later.numel() < shard.numel() || later.dtype() != shard.dtype()) {
    later = at::empty_like(shard);
  }
  return later.narrow(0, 0, shard.numel());
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
    throw;
  }
  buckets_.refuse(plan, Refused::Nothing);
  if (buckets_.has_any_counted(plan)) setup_.step.has_any_counted = true;
  if (plan.has_digest && setup_.step.digest && buckets_.has_unequal_digests(plan)) {
    setup_.step.digests_differ = true;
  }
  if (shards_ == nullptr) {
    if (setup_.options.shard != Shard::None) correct_divisor(bucket, buckets_.flat(plan));
    buckets_.assign_gradients(plan);
    return;
  }
  const bool adds_up = state.submissions > 1;
  const at::Tensor reduced = destination(bucket, !adds_up);
  correct_divisor(bucket, reduced);
  if (adds_up) at::Tensor(shards_->gradient_shard(bucket)).add_(reduced);
  shards_->assign_gradients(bucket, buckets_, adds_up);
  withhold_present(plan);
}

/// Other buckets use the memory of these gradients.
void StepReductions::withhold_own(const Bucket& bucket) {
  for (const Bucket::Member& member : bucket.members) {
    if (buckets_.is_in_place(member.parameter)) withheld_->place(member.parameter);
  }
}

/// The reduced gradients belong to shards: grad() is defined, as without shards, but withheld.
void StepReductions::withhold_present(const Bucket& bucket) {
  buckets_.clear_gradients(bucket);
  for (std::size_t i = 0; i < bucket.members.size(); ++i) {
    const std::size_t parameter = bucket.members[i].parameter;
    const bool is_free = !buckets_.parameters()[parameter].grad().defined();
    if (is_free && buckets_.is_present(bucket, i)) withheld_->place(parameter);
  }
}

/// Joined ranks contribute zeros, so the reduction has divided by all ranks.
void StepReductions::correct_divisor(std::size_t bucket, at::Tensor gradients) {
  const DistributedOptimizerOptions& options = setup_.options;
  const int size = options.process_set->size();
  const double activity = buckets_.reduced_activity(buckets_.buckets()[bucket]);
  const bool has_flags_inside = shards_ == nullptr && !buckets_.has_separate_flags() &&
                                !setup_.compression.encodes_whole(buckets_.buckets()[bucket]);
  const bool is_mean = has_flags_inside && options.op == ReduceOp::Average;
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
      state = State{};
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
    state = State{};
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
