#include "train/optimizer/training_engine.hpp"

#include <algorithm>
#include <cstddef>
#include <exception>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>

#include "kolo/collectives.hpp"
#include "kolo/error.hpp"
#include "kolo/runtime.hpp"
#include "kolo/shard.hpp"
#include "runtime/api/collectives.hpp"
#include "runtime/engine/engine.hpp"
#include "train/optimizer/full_parameters.hpp"
#include "train/optimizer/optimizer_checks.hpp"
#include "train/optimizer/parameter_state.hpp"
#include "train/optimizer/replica_check.hpp"
#include "train/tensors/ordinary_tensors.hpp"
#include "train/tensors/run_or_throw_on_all.hpp"
#include "train/wrapped/libtorch_optimizer.hpp"

namespace kolo::train {
namespace {

ProcessSet& set_of(const DistributedOptimizerOptions& options) {
  return options.process_set != nullptr ? *options.process_set : Runtime::current().world();
}

/// The options with defaults for missing values.
DistributedOptimizerOptions with_defaults(DistributedOptimizerOptions options, ProcessSet& set) {
  options.process_set = &set;
  if (!options.shard) options.shard = shard_named(set.runtime().config().shard);
  if (!options.reduce_dtype && options.master_weights) options.reduce_dtype = at::kFloat;
  return options;
}

TrainingContext context_of(WrappedOptimizer& wrapped, TrainingContext::Groups& groups,
                           DistributedOptimizerOptions options) {
  ProcessSet& set = set_of(options);
  options = with_defaults(std::move(options), set);
  return {.set = set,
          .prefix = set.next_prefix("optimizer"),
          .options = options,
          .compression = compression_of(options),
          .wrapped = wrapped,
          .groups = groups};
}

}  // namespace

TrainingEngine::TrainingEngine(std::unique_ptr<WrappedOptimizer> wrapped, Groups& groups,
                               const ModelSource& model, DistributedOptimizerOptions options,
                               const std::string& problem)
    : wrapped_(std::move(wrapped)),
      context_(context_of(*wrapped_, groups, std::move(options))),
      option_sync_(groups),
      reducers_(
          context_, option_sync_, [model] { return model().parameters; },
          [this] {
            if (context_.step.backward.is_first_call()) begin_backward();
          }),
      guards_(context_, reducers_),
      gradients_(context_.set, context_.sets,
                 [this](const TensorView& own, void* all) { gather_rows(own, all); }),
      normalization_(context_, reducers_),
      attendance_(context_, reducers_),
      commands_(context_),
      local_(context_, reducers_),
      comparison_(context_, reducers_, option_sync_),
      checkpoint_(context_, reducers_, option_sync_, model),
      reporter_(context_),
      end_of_backward_(std::make_shared<std::function<void()>>([this] { end_backward(); })) {
  const OrdinaryTensors ordinary;
  const bool is_alone = context_.set.size() == 1;
  reducers_.add_first(is_alone || problem.empty()
                          ? problem_with(*wrapped_, model().parameters, context_.options)
                          : problem);
  start_units();
  reporter_.start();
}

TrainingEngine::~TrainingEngine() {
  context_.unit_calls->before_gather = nullptr;
  context_.unit_calls->find_joined = nullptr;
  if (!reducers_.are_sharded()) return;
  for (const auto& reducer : reducers_) {
    if (const ParameterShards* const shards = reducer->shards()) shards->erase_state(*wrapped_);
  }
  try {
    wrapped_->create_expected_state();  // for whoever steps the wrapped optimizer next
  } catch (...) {
    // Without memory for it, that step will throw.
  }
}

void TrainingEngine::match_groups() {
  option_sync_.match_members(context_.groups, wrapped_->groups());
}

void TrainingEngine::merge_options() { option_sync_.merge(context_.groups, wrapped_->groups()); }

void TrainingEngine::backward(const at::Tensor& loss_sum, std::int64_t count) {
  forget_dropped();
  const std::uint64_t ended = context_.step.backward.ended();
  normalization_.backward(loss_sum, count);
  if (context_.step.backward.ended() == ended) end_backward();  // it gave no gradient here
}

/// Throws InvalidArgument if the state of the step, or a rank that has joined, does not allow the
/// call. Collective if the call needs all ranks.
void TrainingEngine::require(Call call) {
  require_phase(call, context_.step.phases.current());
  const CallRule& rule = call_rules()[static_cast<std::size_t>(call)];
  if (rule.needs_all_from && *context_.options.shard >= *rule.needs_all_from) {
    attendance_.require_all(std::string(rule.name),
                            [this] { commands_.announce(RefuseCommand{}); });
  }
}

/// Called before the first gradient of a backward().
void TrainingEngine::begin_backward() {
  guards_.require_untouched();
  forget_dropped();
  enter(insight::Phase::Backward);
  context_.step.backward.begin();
  torch::autograd::Engine::get_default_engine().queue_callback(
      [end = std::weak_ptr(end_of_backward_)] {
        // A node runs while this is one backward() within another.
        if (torch::autograd::get_current_node() != nullptr) return;
        if (const auto call = end.lock()) (*call)();
      });
  const bool is_refused = context_.step.phases.current() == StepPhase::Synchronized;
  if (!is_refused) normalization_.note_pass();
}

void TrainingEngine::end_backward() {
  enter(insight::Phase::Synced);
  const bool is_pass = context_.step.no_sync == 0;
  if (!is_pass) return context_.step.backward.end(is_pass);
  const DistributedOptimizerOptions& options = context_.options;
  const bool is_reduced = options.accumulation == Accumulation::Reduced;
  if (is_reduced && options.backward_passes_per_step > 1) {
    commands_.announce(PassCommand{context_.step.backward.passes() + 1});
  }
  end_pass();
}

void TrainingEngine::end_pass() {
  context_.step.backward.end(/*is_pass=*/true);
  for (const auto& reducer : reducers_) reducer->pass_ended();
}

/// If the program has dropped all gradients since the last step, as with the model's zero_grad(),
/// the new pass restarts the step. If it has dropped some, they have not arrived.
void TrainingEngine::forget_dropped() {
  const StepPhases& phases = context_.step.phases;
  BackwardPass& backward = context_.step.backward;
  if (phases.current() == StepPhase::Synchronized) {
    if (!reducers_.any(&GradientReducer::has_gradients)) drop_gradients(/*adds_new=*/false);
    return;
  }
  normalization_.forget_dropped();
  const bool are_all = !reducers_.any(&GradientReducer::has_kept);
  // On other ranks buckets may be in flight, even if none is here: also of a pass that has failed,
  // and if this rank had no samples, and so nothing that the program could drop.
  const int passes_per_step = context_.options.backward_passes_per_step;
  const bool has_dropped = reducers_.any(&GradientReducer::has_dropped);
  if (!has_dropped && (!are_all || backward.passes() < passes_per_step)) return;
  const int passes = backward.passes() + (backward.is_running() ? 1 : 0);
  const bool is_reduced = passes >= passes_per_step;
  if (are_all && (is_reduced || phases.is_in_flight())) return drop_gradients(/*adds_new=*/false);
  const std::string changed = reducers_.changed_since_arrival();
  for (const auto& reducer : reducers_) reducer->forget_dropped();
  if (!are_all) return;
  backward.restart();
  normalization_.restart();
  guards_.discard(changed);
}

void TrainingEngine::enter(insight::Phase phase) { context_.set.engine()->recorder().enter(phase); }

void TrainingEngine::synchronize() {
  enter(insight::Phase::Step);
  if (context_.step.phases.current() == StepPhase::Synchronized) {
    return note_dropped(reducers_.drop_undefined());
  }
  guards_.require_untouched();
  if (local_.is_on()) return normalization_.finish_alone();
  add_new();
  reduce(/*is_discarded=*/false);
}

/// The program has undefined the grad() of these parameters, whose reduced gradients this rank has
/// dropped.
void TrainingEngine::note_dropped(const std::vector<std::string>& parameters) {
  if (parameters.empty() || !context_.step.is_active) return;
  comparison_.note_dropped(parameters);
  commands_.announce(DropCommand{parameters});
}

/// Collective if the program has added or unfrozen parameters.
void TrainingEngine::add_new() {
  match_groups();
  reducers_.add_new([this] { require(Call::AddParameters); });
}

void TrainingEngine::discard() {
  const OrdinaryTensors ordinary;
  ++discards_;
  drop_gradients(/*adds_new=*/true);
}

/// Within a backward(), `adds_new` would drop the gradients that it has brought new parameters.
void TrainingEngine::drop_gradients(bool adds_new) {
  context_.step.backward.restart();
  try {
    drop_on_all_ranks();
    if (adds_new) add_new();
  } catch (const ShutdownError&) {
    // A Runtime has ended: no rank reduces these gradients or waits for this one any more.
    normalization_.restart();
    reducers_.abandon();
  }
}

void TrainingEngine::drop_on_all_ranks() {
  StepPhases& phases = context_.step.phases;
  const bool is_reduced = phases.current() == StepPhase::Synchronized;
  const bool has_begun = phases.is_in_flight() || normalization_.has_passes() || has_arrivals();
  if (is_reduced) phases.restart();
  if (!has_begun) normalization_.restart();
  // A step that has failed leaves stand-ins.
  if (!has_begun && !is_reduced) return reducers_.end_withholding();
  const std::string changed = reducers_.changed_since_arrival();
  const bool is_known = phases.current() == StepPhase::Failed;
  if (has_begun) {  // other ranks may have submitted buckets
    try {
      reduce(/*is_discarded=*/true);
    } catch (const ShutdownError&) {
      throw;
    } catch (...) {  // an error of a reduction that could not start may be LibTorch's
      if (!is_known) throw;
    }
    phases.restart();
  }
  commands_.announce(DiscardCommand{});
  if (!is_known) end_dropped_step();  // otherwise step() has failed on other ranks
  attendance_.restart();
  reducers_.finish_residuals(/*is_used=*/false);
  reducers_.clear_gradients();
  guards_.discard(changed);
}

void TrainingEngine::make_gradients_ready() {
  enter(insight::Phase::Step);
  if (skip_synchronize_ == 0) return synchronize();
  guards_.require_unsharded("step() under skip_synchronize()");
  require(Call::LocalStep);
  normalization_.finish_alone();
}

double TrainingEngine::clip_grad_norm(double max_norm, double norm_type) {
  if (!(norm_type > 0.0)) {
    throw InvalidArgument("DistributedOptimizer: clip_grad_norm_ with norm_type " +
                          std::to_string(norm_type) + ", which must be positive");
  }
  synchronize();
  commands_.announce(ClipCommand{max_norm, norm_type});
  return clip_norm(max_norm, norm_type);
}

double TrainingEngine::clip_norm(double max_norm, double norm_type) {
  note_call("clip_grad_norm_", {max_norm, norm_type});
  return gradients_.clip(reducers_.gradients(), max_norm, norm_type, !context_.is_sharded());
}

void TrainingEngine::clip_grad_value(double max_value) {
  if (!(max_value >= 0.0)) {
    throw InvalidArgument("DistributedOptimizer: clip_grad_value_ with max_value " +
                          std::to_string(max_value) + ", which must not be negative");
  }
  synchronize();
  commands_.announce(ClipValueCommand{max_value});
  clip_values(max_value);
}

void TrainingEngine::clip_values(double max_value) {
  note_call("clip_grad_value_", {max_value});
  reducers_.clip_values(max_value);
}

int TrainingEngine::for_each_gradient(const DistributedOptimizer::GradientVisitor& visit) {
  synchronize();
  require(Call::ForEachGradient);
  note_call("for_each_gradient", {});
  reducers_.for_each_gradient(visit);
  if (!context_.is_sharded()) return context_.set.size();
  return context_.sets.replicas != nullptr ? context_.sets.replicas->size() : 1;
}

void TrainingEngine::unscale(double scale) {
  make_gradients_ready();
  require_precise_gradients();
  commands_.announce(UnscaleCommand{scale});
  divide_gradients(scale);
}

void TrainingEngine::divide_gradients(double scale) {
  if (!context_.is_sharded()) note_call("GradScaler::unscale_", {scale});  // else found at once
  // Each rank has all reduced gradients, the same as the others, unless they are sharded.
  gradients_.unscale(reducers_.gradients(), scale, /*is_local=*/!context_.is_sharded());
}

/// Gradients that ranks have not reduced may differ, and what is done to them, too.
void TrainingEngine::note_call(const std::string& call, const std::vector<double>& arguments) {
  if (context_.step.phases.current() != StepPhase::Synchronized) return;
  comparison_.note_call(call, arguments);
}

void TrainingEngine::require_precise_gradients() const {
  const DistributedOptimizerOptions& options = context_.options;
  if (context_.is_sharded() ? options.master_weights : options.reduce_dtype.has_value()) return;
  for (const auto& reducer : reducers_) {
    for (const ReducedParameter& parameter : reducer->parameters()) {
      if (parameter.tensor.scalar_type() != at::kHalf) continue;
      throw InvalidArgument(
          "GradScaler: gradients of parameter '" + parameter.name +
          "' are float16, in which they cannot be unscaled without loss. Keep parameters in "
          "float32 and run the model under kolo::Autocast, or set master_weights.");
    }
  }
}

GlobalGradients::Found TrainingEngine::found_in_gradients() {
  using Found = GlobalGradients::Found;
  if (!gradients_.has_found()) commands_.announce(FindOverflowCommand{});
  const Found found = gradients_.found();
  return found == Found::NoGradients && normalization_.has_counted() ? Found::Finite : found;
}

void TrainingEngine::set_hook(BucketHook hook) {
  guards_.require_unsharded("register_bucket_hook()");
  require(Call::RegisterBucketHook);
  context_.hook = std::move(hook);
  for (const auto& reducer : reducers_) {
    reducer->lay_out_residuals(reducer->residuals().take());
  }
}

// --- updates with reduced gradients, and skipped steps ---

at::Tensor TrainingEngine::step(const LossClosure& closure) {
  const OrdinaryTensors ordinary;
  guards_.require_untouched();
  merge_options();
  at::Tensor loss;
  try {
    loss = context_.is_sharded() ? step_shards(closure) : step_unsharded(closure);
  } catch (...) {
    comparison_.note_failure(text_of_current_error());
    throw;
  }
  reducers_.finish_residuals(/*is_used=*/true);
  ++context_.steps;
  guards_.step();
  reporter_.step();
  end_step(StepEnd::Step);
  return loss;
}

at::Tensor TrainingEngine::step_unsharded(const LossClosure& closure) {
  if (closure) {
    return wrapped_->step([&] {
      at::Tensor loss = closure();
      make_gradients_ready();
      return loss;
    });
  }
  make_gradients_ready();
  return wrapped_->step(nullptr);
}

at::Tensor TrainingEngine::step_shards(const LossClosure& closure) {
  at::Tensor loss;
  if (closure) {
    const at::AutoGradMode enable(true);
    loss = closure();
  }
  make_gradients_ready();
  if (context_.have_some_joined()) {
    commands_.announce(UpdateCommand{OptionSync::describe(context_.groups)});
  }
  update_shards();
  return loss;
}

/// Steps bucket by bucket, so that one is gathered while the next is stepped; all together if the
/// wrapped optimizer must be stepped once. If it throws on a rank, the others learn the reason, and
/// throw, where they wait for that rank's updates.
void TrainingEngine::update_shards() {
  call_in_step("step()", [&] { attendance_.meet("step()"); });
  std::exception_ptr error;
  std::string failure;
  const auto attempt = [&](const auto& work) {
    try {
      work();
    } catch (...) {
      if (error) return;
      error = std::current_exception();  // continue: other ranks wait for this one
      failure = "step() that threw: " + text_of_current_error();
    }
  };
  struct ShardedBucket {
    const ParameterShards& shards;
    std::size_t number;
  };
  std::vector<ShardedBucket> begun;
  std::vector<std::vector<at::Tensor>> leaves(context_.groups.size());
  const bool is_one_step = !wrapped_->steps_leaves_separately();
  const auto step = [&] {
    attempt([&] {
      if (error) return;
      const bool has_leaves =
          std::ranges::any_of(leaves, std::not_fn(&std::vector<at::Tensor>::empty));
      if (has_leaves || is_one_step) wrapped_->step_leaves(leaves);
      for (const ShardedBucket& bucket : begun) bucket.shards.end_update(bucket.number);
    });
    for (const ShardedBucket& bucket : begun) {
      bucket.shards.memory().end_bucket(bucket.number, failure);
    }
    for (std::vector<at::Tensor>& of_group : leaves) of_group.clear();
    begun.clear();
  };
  for (const auto& reducer : reducers_) {
    const ParameterShards& shards = *reducer->shards();
    shards.memory().begin_update();
    for (std::size_t i = 0; i < reducer->buckets().buckets().size(); ++i) {
      attempt([&] {
        for (const ParameterShards::Leaf* const leaf : shards.begin_update(i)) {
          const at::Tensor& parameter = reducer->parameters()[leaf->parameter].tensor;
          const std::optional<std::size_t> group = option_sync_.group_of(parameter);
          if (group) leaves[*group].push_back(leaf->values);
        }
      });
      begun.push_back({shards, i});
      if (!is_one_step) step();
    }
  }
  if (is_one_step) step();
  for (const auto& reducer : reducers_) {
    attempt([&] { reducer->shards()->memory().end_update(failure); });
  }
  reducers_.clear_gradients();
  attendance_.restart();
  if (!error) return;
  context_.step.phases.restart();  // the gradients are gone, on this rank too
  context_.unit_calls->restart();
  try {
    std::rethrow_exception(error);
  } catch (const MismatchError& mismatch) {
    throw MismatchError(
        "DistributedOptimizer: step() has failed on a rank, so that parameters are updated in "
        "part: load() a checkpoint. " +
        std::string(mismatch.what()));
  }
}

/// Ends a step without an update and without counting it.
void TrainingEngine::skip_step() {
  if (context_.step.is_active) commands_.announce(SkipCommand{});
  if (context_.is_sharded()) reducers_.clear_gradients();
  reducers_.finish_residuals(/*is_used=*/false);
  attendance_.restart();
  end_step(StepEnd::Skipped);
}

/// The reduced gradients are dropped on all ranks. If the optimizer is sharded, ranks that step
/// would wait for this one to update its shards: they get an error instead.
void TrainingEngine::end_dropped_step() {
  if (context_.is_sharded()) {
    call_in_step("zero_grad()", [&] { attendance_.meet("zero_grad()"); });
  }
  context_.unit_calls->restart();
  comparison_.note(StepEnd::Dropped);
}

/// After an error on all ranks: nothing is updated.
void TrainingEngine::abandon_step() {
  context_.step.phases.restart();
  context_.unit_calls->restart();
  comparison_.restart();
  reducers_.finish_residuals(/*is_used=*/false);
  reducers_.clear_gradients();
}

/// After an update or a skipped step.
void TrainingEngine::end_step(StepEnd end) {
  StepPhases& phases = context_.step.phases;
  const bool is_reduced = phases.current() == StepPhase::Synchronized;
  phases.restart();
  context_.unit_calls->restart();
  if (is_reduced) comparison_.note(end);
  if (local_.end_step()) average_parameters();
  enter(insight::Phase::Forward);
}

// --- what ranks agree on in a step ---

void TrainingEngine::start_units() {
  context_.unit_calls->before_gather = [this](const std::string& reducer, std::size_t unit,
                                              std::size_t slot) {
    if (context_.step.is_active) commands_.announce(GatherCommand{reducer, unit, slot});
  };
  context_.unit_calls->find_joined = [this](const MismatchError& error) {
    return attendance_.find_joined(error);
  };
}

/// Runs a collective between the reduction and the end of a step, for this rank's call `call`. If
/// ranks of a sharded optimizer call different ones, all throw MismatchError, and the step ends
/// without an update.
void TrainingEngine::call_in_step(const char* call, const std::function<void()>& collective) {
  try {
    collective();
  } catch (const MismatchError& error) {
    abandon_step();
    throw MismatchError("DistributedOptimizer: rank " +
                        std::to_string(context_.set.runtime().rank()) + " called " + call +
                        " with reduced gradients, unlike other ranks. Let all ranks step, or all "
                        "drop the gradients. " +
                        error.what());
  }
}

/// Of a sharded optimizer. Numbered like the collectives of units, so that ranks that call
/// something else, such as step(), get an error at once.
void TrainingEngine::gather_rows(const TensorView& own, void* all) {
  constexpr const char* kCall = "clip_grad_norm_() or a step with GradScaler";
  call_in_step(kCall, [&] {
    allgather(
        own, [all](const auto&) { return all; },
        context_.unit_calls->next({.process_set = &context_.set}, kCall));
  });
}

/// Reduces the gradients of the step that are not reduced yet.
void TrainingEngine::reduce(bool is_discarded) {
  std::exception_ptr unmet;
  if (context_.is_sharded() && context_.step.is_active) {
    try {
      attendance_.find_joined_before("the end of backward()");
      commands_.announce(ReduceCommand{is_discarded});
    } catch (const MismatchError&) {
      throw;
    } catch (const Error&) {  // such as a lost rank: the errors of buckets name their parameters
      unmet = std::current_exception();
    }
  }
  normalization_.begin();
  try {
    reducers_.reduce_all();
    if (unmet) {
      context_.step.phases.finish(/*has_succeeded=*/false);
      std::rethrow_exception(unmet);
    }
  } catch (...) {
    normalization_.finish(/*have_succeeded=*/false, is_discarded);
    try {
      comparison_.require_alike();  // the error may be of this rank alone
    } catch (const MismatchError&) {
    }
    throw;
  }
  normalization_.finish(/*have_succeeded=*/true, is_discarded);
  try {
    comparison_.require_alike();
  } catch (const MismatchError&) {
    abandon_step();
    throw;
  }
  comparison_.note(StepEnd::Open);
  std::vector<std::string> dropped;
  if (!is_discarded) dropped = reducers_.drop_undefined();
  // Collective in the first step, which other ranks may take even if this one discards it.
  for (const auto& reducer : reducers_) reducer->lay_out_by_arrival();
  if (is_discarded) return;
  normalization_.normalize();
  note_dropped(dropped);
}

// --- joining ---

int TrainingEngine::join() {
  const OrdinaryTensors ordinary;
  require(Call::Join);
  if (context_.options.local_sgd.period > 0) {
    throw InvalidArgument(
        "DistributedOptimizer: join() with local_sgd, whose ranks have parameters of their own. "
        "Give all ranks equally many steps.");
  }
  add_new();  // as ranks that do not join yet
  int last = 0;
  if (context_.is_sharded()) {
    last = join_sharded();
    comparison_.compare_last();
  } else {
    last = kolo::join(&context_.set);
    align_ranks(context_, reducers_, option_sync_, comparison_);
  }
  comparison_.restart();
  normalization_.forget_reference();
  discards_before_join_ = discards_;
  return last;
}

/// Other ranks need a joined rank's shards: it takes part in their steps, without gradients of its
/// own, until no rank is active.
int TrainingEngine::join_sharded() {
  if (context_.step.phases.current() == StepPhase::Synchronized) {
    drop_gradients(/*adds_new=*/false);
  }
  const auto make_active = [](TrainingContext* context) { context->step.is_active = true; };
  const std::unique_ptr<TrainingContext, decltype(make_active)> joined(&context_, make_active);
  context_.step.is_active = false;
  while (attendance_.join()) {
    follow_one_step();
    context_.step.phases.restart();
  }
  reduce(/*is_discarded=*/true);  // what this rank has submitted for steps that nobody takes
  context_.step.phases.restart();
  attendance_.restart();
  for (GatheredUnits* const units : reducers_.units()) units->restart();
  reducers_.clear_gradients();
  // If no rank has announced anything, all have joined simultaneously.
  return commands_.take_last_active().value_or(context_.set.ranks().back());
}

/// Follows the commands of active ranks until the end of their step, or until none is active.
void TrainingEngine::follow_one_step() {
  while (const std::optional<StepCommand> received = commands_.receive()) {
    const StepCommand& command = *received;
    if (const auto* const gather = std::get_if<GatherCommand>(&command)) {
      reducers_.gather_for_others(*gather);
    } else if (const auto* const pass = std::get_if<PassCommand>(&command)) {
      while (context_.step.backward.passes() < pass->passes) end_pass();
    } else if (const auto* const reduction = std::get_if<ReduceCommand>(&command)) {
      reduce(reduction->is_discarded);
    } else if (const auto* const clip = std::get_if<ClipCommand>(&command)) {
      clip_norm(clip->max_norm, clip->norm_type);
    } else if (const auto* const clip_value = std::get_if<ClipValueCommand>(&command)) {
      clip_values(clip_value->max_value);
    } else if (const auto* const drop = std::get_if<DropCommand>(&command)) {
      reducers_.drop(drop->parameters);
      comparison_.note_dropped(drop->parameters);
    } else if (const auto* const unscale = std::get_if<UnscaleCommand>(&command)) {
      divide_gradients(unscale->scale);
    } else if (std::holds_alternative<FindOverflowCommand>(command)) {
      gradients_.found();
    } else if (const auto* const update = std::get_if<UpdateCommand>(&command)) {
      OptionSync::apply(update->options, context_.groups);
      merge_options();
      update_shards();
      ++context_.steps;
      return end_step(StepEnd::Step);
    } else if (std::holds_alternative<SkipCommand>(command)) {
      return skip_step();
    } else if (std::holds_alternative<DiscardCommand>(command)) {
      end_dropped_step();
      reducers_.clear_gradients();
      return attendance_.restart();
    } else {  // RefuseCommand
      return attendance_.restart();
    }
  }
}

// --- parameters, replicas, checkpoints ---

void TrainingEngine::full_parameters(const std::function<void()>& write) {
  guards_.require_untouched();
  require(Call::FullParameters);
  write_full_parameters(context_, reducers_, write);
}

DistributedOptimizer::ParameterState TrainingEngine::parameter_state(const at::Tensor& parameter) {
  const auto [reducer, index] = reducers_.find(parameter, "parameter_state()");
  require(Call::ParameterState);
  return state_of(context_, *reducer, index);
}

void TrainingEngine::reset_parameter_state(const at::Tensor& parameter) {
  const auto [reducer, index] = reducers_.find(parameter, "reset_parameter_state()");
  require(Call::ResetParameterState);
  comparison_.note_reset(reducer->parameters()[index].name);
  reset_state_of(context_, *reducer, index);
}

void TrainingEngine::require_state_map() const {
  if (!context_.is_sharded()) return;
  throw InvalidArgument(
      "DistributedOptimizer: state() with shard = " +
      std::string(kolo::name_of(*context_.options.shard)) +
      ", where each rank has state of its shards alone. Read a parameter's state with "
      "parameter_state(), reset it with reset_parameter_state(), and save it with save().");
}

/// Averages parameters of ranks that have stepped alone.
void TrainingEngine::average_parameters() {
  add_new();
  local_.average();
}

void TrainingEngine::check_replicas() {
  guards_.require_untouched();
  require(Call::CheckReplicas);
  compare_replicas(context_, reducers_);
}

Saved TrainingEngine::save(const std::filesystem::path& folder, const SaveOptions& options) {
  require(Call::Save);
  merge_options();
  local_.is_on() ? average_parameters() : comparison_.compare_last_and_next();
  comparison_.warn_of_skipped_batches(discards_ - discards_before_join_);
  return checkpoint_.save(folder, options);
}

Loaded TrainingEngine::load(const std::filesystem::path& path, const LoadOptions& options) {
  const OrdinaryTensors ordinary;
  require(Call::Load);
  add_new();
  merge_options();
  for (GatheredUnits* const units : reducers_.units()) units->release_all();
  const Loaded loaded = checkpoint_.load(path, options);
  local_.resume(context_.steps);
  comparison_.restart();
  return loaded;
}

void TrainingEngine::save_full_state(const std::filesystem::path& file, int root) {
  require(Call::SaveFullState);
  if (local_.is_on()) average_parameters();
  checkpoint_.save_full_state(file, root);
}

void TrainingEngine::save(torch::serialize::OutputArchive& archive) const {
  guards_.require_whole_state("torch::save");
  wrapped_->save(archive);
}

void TrainingEngine::load(torch::serialize::InputArchive& archive) {
  guards_.require_whole_state("torch::load");
  wrapped_->load(archive);
  merge_options();  // loading replaces the options of the wrapped optimizer's groups
}

}  // namespace kolo::train
