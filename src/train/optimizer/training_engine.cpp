#include "train/optimizer/training_engine.hpp"

#include <cstddef>
#include <exception>
#include <utility>
#include <vector>

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>

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
#include "train/wrapped/wrapped_optimizer.hpp"

namespace kolo::train {
namespace {

/// The options with defaults for missing values.
DistributedOptimizerOptions with_defaults(DistributedOptimizerOptions options, ProcessSet& set) {
  options.process_set = &set;
  if (!options.shard) options.shard = shard_named(set.runtime().config().shard);
  if (!options.reduce_dtype && options.master_weights) options.reduce_dtype = at::kFloat;
  return options;
}

TrainingContext context_of(WrappedOptimizer& wrapped, TrainingContext::Groups& groups,
                           DistributedOptimizerOptions options) {
  ProcessSet& set = runtime::set_or_world(options.process_set);
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
      comparison_(context_, reducers_, option_sync_),
      protocol_(make_protocol()),
      gradients_(context_.set, context_.sets, protocol_->gather_rows()),
      normalization_(context_, reducers_),
      local_(context_, reducers_),
      checkpoint_(context_, reducers_, option_sync_, model),
      reporter_(context_),
      end_of_backward_(std::make_shared<std::function<void()>>([this] { end_backward(); })) {
  const OrdinaryTensors ordinary;
  const bool is_alone = context_.set.size() == 1;
  reducers_.add_first(is_alone || problem.empty()
                          ? problem_with(*wrapped_, model().parameters, context_.options)
                          : problem);
  reporter_.start();
}

std::unique_ptr<StepProtocol> TrainingEngine::make_protocol() {
  if (!context_.is_sharded()) {
    return make_whole_steps(context_, reducers_, option_sync_, comparison_);
  }
  JoinedCalls calls{
      {"pass",
       [this](const nlohmann::json& passes) {
         while (context_.step.backward.passes() < passes.get<int>()) end_pass();
       }},
      {"reduction", [this](const nlohmann::json& is_discarded) { reduce(is_discarded); }},
      {"clip_grad_norm_()", [this](const nlohmann::json& to) { clip_norm(to[0], to[1]); }},
      {"clip_grad_value_()", [this](const nlohmann::json& max_value) { clip_values(max_value); }},
      {"unscale_()", [this](const nlohmann::json& scale) { divide_gradients(scale); }},
      {"search for overflows", [this](const nlohmann::json&) { gradients_.found(); }},
      {"drop",
       [this](const nlohmann::json& parameters) {
         reducers_.drop(parameters);
         comparison_.note_dropped(parameters);
       }},
      {"skip", [this](const nlohmann::json&) { skip_step(); }},
      {"zero_grad()",
       [this](const nlohmann::json&) {
         drop_step();
         reducers_.clear_gradients();
         protocol_->restart();
       }},
  };
  return make_sharded_steps(context_, reducers_, option_sync_, comparison_,
                            {.drop_gradients = [this] { drop_gradients(/*adds_new=*/false); },
                             .abandon = [this] { abandon_step(); },
                             .end_step =
                                 [this] {
                                   ++context_.steps;
                                   end_step(StepEnd::Step);
                                 },
                             .calls = std::move(calls)});
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
    protocol_->require_all(std::string(rule.name));
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
    protocol_->announce("pass", context_.step.backward.passes() + 1);
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
  protocol_->announce("drop", parameters);
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
  if (!has_begun && !is_reduced) return reducers_.remove_stand_ins();
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
  protocol_->announce("zero_grad()");
  if (!is_known) drop_step();  // otherwise step() has failed on other ranks
  protocol_->restart();
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
  protocol_->announce("clip_grad_norm_()", {max_norm, norm_type});
  return clip_norm(max_norm, norm_type);
}

double TrainingEngine::clip_norm(double max_norm, double norm_type) {
  note_call("clip_grad_norm_", {max_norm, norm_type});
  return gradients_.clip(reducers_.gradients(), max_norm, norm_type);
}

void TrainingEngine::clip_grad_value(double max_value) {
  if (!(max_value >= 0.0)) {
    throw InvalidArgument("DistributedOptimizer: clip_grad_value_ with max_value " +
                          std::to_string(max_value) + ", which must not be negative");
  }
  synchronize();
  protocol_->announce("clip_grad_value_()", max_value);
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
  return protocol_->copies_of_gradients();
}

void TrainingEngine::unscale(double scale) {
  make_gradients_ready();
  require_precise_gradients();
  protocol_->announce("unscale_()", scale);
  divide_gradients(scale);
}

void TrainingEngine::divide_gradients(double scale) {
  if (gradients_.has_all()) note_call("GradScaler::unscale_", {scale});  // else found at once
  gradients_.unscale(reducers_.gradients(), scale);
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
  if (!gradients_.has_found()) protocol_->announce("search for overflows");
  const Found found = gradients_.found();
  return found == Found::NoGradients && normalization_.has_counted() ? Found::Finite : found;
}

void TrainingEngine::set_hook(BucketHook hook) {
  guards_.require_unsharded("register_bucket_hook()");
  require(Call::RegisterBucketHook);
  context_.hook = std::move(hook);
  for (const auto& reducer : reducers_) {
    reducer->layouts().lay_out_residuals(reducer->layouts().residuals().take());
  }
}

// --- updates with reduced gradients, and skipped steps ---

at::Tensor TrainingEngine::step(const LossClosure& closure) {
  const OrdinaryTensors ordinary;
  guards_.require_untouched();
  merge_options();
  at::Tensor loss;
  try {
    loss = protocol_->step(closure, [this] { make_gradients_ready(); });
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

/// Ends a step without an update and without counting it.
void TrainingEngine::skip_step() {
  protocol_->skip();
  reducers_.finish_residuals(/*is_used=*/false);
  end_step(StepEnd::Skipped);
}

/// The reduced gradients are dropped on all ranks.
void TrainingEngine::drop_step() {
  protocol_->drop();
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

/// Reduces the gradients of the step that are not reduced yet.
void TrainingEngine::reduce(bool is_discarded) {
  std::exception_ptr unmet;
  try {
    protocol_->begin_reduction(is_discarded);
  } catch (const MismatchError&) {
    throw;
  } catch (const Error&) {  // such as a lost rank: the errors of buckets name their parameters
    unmet = std::current_exception();
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
  for (const auto& reducer : reducers_) reducer->layouts().follow_arrivals();
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
  std::exception_ptr unsaved;  // others may train on: they get the error when they join
  try {
    checkpoint_.wait();
  } catch (...) {
    unsaved = std::current_exception();
  }
  add_new();  // as ranks that do not join yet
  const int last = protocol_->join();
  comparison_.restart();
  normalization_.forget_reference();
  discards_before_join_ = discards_;
  if (unsaved) std::rethrow_exception(unsaved);
  return last;
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
  guards_.require_unsharded(
      "state()",
      "Each rank has state of its shards alone: read a parameter's state with parameter_state(), "
      "reset it with reset_parameter_state(), and save it with save().");
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
  checkpoint_.wait();
  merge_options();
  local_.is_on() ? average_parameters() : comparison_.compare_last_and_next();
  comparison_.warn_of_skipped_batches(discards_ - discards_before_join_);
  return checkpoint_.save(folder, options);
}

Loaded TrainingEngine::load(const std::filesystem::path& path, const LoadOptions& options) {
  const OrdinaryTensors ordinary;
  require(Call::Load);
  checkpoint_.wait();
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
