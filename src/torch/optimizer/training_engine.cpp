#include "torch/optimizer/training_engine.hpp"

#include <string>
#include <utility>
#include <vector>

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>

#include "kolo/collectives.hpp"
#include "kolo/error.hpp"
#include "kolo/runtime.hpp"
#include "runtime/api/submit.hpp"
#include "torch/optimizer/compression_checks.hpp"
#include "torch/optimizer/optimizer_checks.hpp"

namespace kolo::tensors {
namespace {

ProcessSet& set_of(const DistributedOptimizerOptions& options) {
  return options.process_set != nullptr ? *options.process_set : Runtime::current().world();
}

/// The options with defaults for missing values.
DistributedOptimizerOptions completed(DistributedOptimizerOptions options, ProcessSet& set) {
  options.process_set = &set;
  if (!options.shard) options.shard = shard_named(set.runtime().config().shard);
  if (!options.reduce_dtype && options.master_weights) options.reduce_dtype = at::kFloat;
  return options;
}

TrainingContext context_of(WrappedOptimizer& wrapped, TrainingContext::Groups& groups,
                           DistributedOptimizerOptions options) {
  ProcessSet& set = set_of(options);
  options = completed(std::move(options), set);
  return {.set = set,
          .prefix = runtime::next_prefix(set, "optimizer"),
          .options = options,
          .compression = compression_of(options),
          .wrapped = wrapped,
          .groups = groups};
}

}  // namespace

TrainingEngine::TrainingEngine(std::unique_ptr<WrappedOptimizer> wrapped, Groups& groups,
                               const NamedTensors& parameters, const NamedTensors& buffers,
                               DistributedOptimizerOptions options, const std::string& problem)
    : wrapped_(std::move(wrapped)),
      context_(context_of(*wrapped_, groups, std::move(options))),
      option_sync_(groups),
      batches_(context_, option_sync_, parameters,
               [this] {
                 if (context_.step.backward.is_first_call()) begin_backward();
               }),
      guards_(context_, batches_),
      gradients_(context_.set, context_.sets,
                 [this](const TensorView& rows) { sum_over_ranks(rows); }),
      normalization_(context_, batches_),
      commands_(context_),
      local_(context_, batches_),
      comparison_(context_, batches_, option_sync_),
      replica_check_(context_, batches_),
      checkpoint_(context_, batches_, option_sync_, parameters, buffers),
      reporter_(context_),
      end_of_backward_(std::make_shared<std::function<void()>>([this] { end_backward(); })) {
  const bool is_alone = context_.set.size() == 1;
  batches_.add_first(is_alone || problem.empty()
                         ? problem_with(*wrapped_, parameters, context_.options)
                         : problem);
  start_units();
  reporter_.start();
}

TrainingEngine::~TrainingEngine() {
  context_.unit_calls->before_gather = nullptr;
  context_.unit_calls->find_joined = nullptr;
  if (!batches_.are_sharded()) return;
  for (const auto& reducer : batches_) reducer->shards()->erase_state(*wrapped_);
  try {
    wrapped_->create_expected_state();  // for whoever steps the wrapped optimizer next
  } catch (...) {
    // Without memory for it, that step will throw.
  }
}

void TrainingEngine::merge_options() { option_sync_.merge(context_.groups, wrapped_->groups()); }

void TrainingEngine::backward(const at::Tensor& loss_sum, std::int64_t count) {
  forget_dropped();
  const std::uint64_t ended = context_.step.backward.ended();
  normalization_.backward(loss_sum, count);
  if (context_.step.backward.ended() == ended) end_backward();  // it gave no gradient here
}

/// Called before the first gradient of a backward().
void TrainingEngine::begin_backward() {
  guards_.require_untouched();
  forget_dropped();
  context_.step.backward.begin();
  torch::autograd::Engine::get_default_engine().queue_callback(
      [end = std::weak_ptr(end_of_backward_)] {
        // A node runs while this is one backward() within another.
        if (torch::autograd::get_current_node() != nullptr) return;
        if (const auto call = end.lock()) (*call)();
      });
  normalization_.note_pass();
}

void TrainingEngine::end_backward() {
  const bool is_pass = context_.step.no_sync == 0;
  context_.step.backward.end(is_pass);
  if (!is_pass) return;
  for (const auto& reducer : batches_) reducer->pass_ended();
}

/// If the program has dropped all gradients since the last step, as with the model's zero_grad(),
/// the new pass restarts the step. If it has dropped some, they have not arrived.
void TrainingEngine::forget_dropped() {
  const StepPhases& phases = context_.step.phases;
  BackwardPass& backward = context_.step.backward;
  if (phases.current() == StepPhase::Synchronized) {
    if (!batches_.any(&GradientReducer::has_gradients)) discard();
    return;
  }
  normalization_.forget_dropped();
  if (!batches_.any(&GradientReducer::has_dropped)) return;
  const bool are_all = !batches_.any(&GradientReducer::has_kept);
  // On other ranks buckets may be in flight, even if none is here.
  const bool is_reduced = backward.passes() >= context_.options.backward_passes_per_step;
  if (are_all && (is_reduced || phases.is_in_flight())) return discard();
  const std::string changed = batches_.changed_since_arrival();
  for (const auto& reducer : batches_) reducer->forget_dropped();
  if (!are_all) return;
  backward.restart();
  normalization_.restart();
  guards_.discard(changed);
}

void TrainingEngine::synchronize() {
  if (context_.step.phases.current() == StepPhase::Synchronized) {
    return note_dropped(batches_.drop_undefined());
  }
  guards_.require_untouched();
  option_sync_.match_members(context_.groups, wrapped_->groups());
  if (local_.is_on()) return normalization_.finish_alone();
  batches_.add_new();
  reduce(/*is_discarded=*/false);
}

/// The program has undefined the grad() of these parameters, whose reduced gradients this rank has
/// dropped.
void TrainingEngine::note_dropped(const std::vector<std::string>& parameters) {
  if (parameters.empty() || !context_.step.is_active) return;
  comparison_.note_dropped(parameters);
  commands_.announce(DropCommand{parameters});
}

void TrainingEngine::discard() {
  ++discards_;
  context_.step.backward.restart();
  try {
    discard_on_all_ranks();
  } catch (const ShutdownError&) {
    // A Runtime has ended: no rank reduces these gradients or waits for this one any more.
    normalization_.restart();
    batches_.abandon();
  }
}

void TrainingEngine::discard_on_all_ranks() {
  StepPhases& phases = context_.step.phases;
  const bool is_reduced = phases.current() == StepPhase::Synchronized;
  const bool has_begun = phases.is_in_flight() || normalization_.has_passes() || has_arrivals();
  if (is_reduced) phases.restart();
  option_sync_.match_members(context_.groups, wrapped_->groups());
  batches_.add_new();
  if (!has_begun) normalization_.restart();
  // A step that has failed leaves stand-ins.
  if (!has_begun && !is_reduced) return batches_.end_withholding();
  const std::string changed = batches_.changed_since_arrival();
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
  batches_.finish_residuals(/*is_used=*/false);
  batches_.clear_gradients();
  guards_.discard(changed);
}

void TrainingEngine::make_gradients_ready() {
  if (skip_synchronize_ == 0) return synchronize();
  guards_.require_unsharded("step() under skip_synchronize()");
  context_.step.phases.require(StepCall::LocalStep);
  normalization_.finish_alone();
}

double TrainingEngine::clip_grad_norm(double max_norm, double norm_type) {
  if (!(norm_type > 0.0)) {
    throw InvalidArgument("DistributedOptimizer: clip_grad_norm_ with norm_type " +
                          std::to_string(norm_type) + ", which must be positive");
  }
  synchronize();
  commands_.announce(ClipCommand{max_norm, norm_type});
  return gradients_.clip(batches_.gradients(), max_norm, norm_type, !context_.is_sharded());
}

void TrainingEngine::clip_grad_value(double max_value) {
  if (!(max_value >= 0.0)) {
    throw InvalidArgument("DistributedOptimizer: clip_grad_value_ with max_value " +
                          std::to_string(max_value) + ", which must not be negative");
  }
  synchronize();
  commands_.announce(ClipValueCommand{max_value});
  batches_.clip_values(max_value);
}

int TrainingEngine::for_each_gradient(const DistributedOptimizer::GradientVisitor& visit) {
  synchronize();
  if (context_.have_some_joined()) {
    throw InvalidArgument(
        "DistributedOptimizer: for_each_gradient() while some ranks have joined, whose shards of "
        "the gradients it cannot visit. Call it in steps that all ranks take.");
  }
  batches_.for_each_gradient(visit);
  if (!context_.is_sharded()) return context_.set.size();
  return context_.sets.replicas != nullptr ? context_.sets.replicas->size() : 1;
}

void TrainingEngine::unscale(double scale) {
  make_gradients_ready();
  require_precise_gradients();
  commands_.announce(UnscaleCommand{scale});
  // Each rank has all reduced gradients, the same as the others, unless they are sharded.
  const bool is_local = !context_.is_sharded();
  const bool is_reduced = context_.step.phases.current() == StepPhase::Synchronized;
  if (is_local && is_reduced) comparison_.note_scale(scale);
  gradients_.unscale(batches_.gradients(), scale, is_local);
}

void TrainingEngine::require_precise_gradients() const {
  const DistributedOptimizerOptions& options = context_.options;
  if (context_.is_sharded() ? options.master_weights : options.reduce_dtype.has_value()) return;
  for (const auto& reducer : batches_) {
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
  context_.step.phases.require(StepCall::RegisterBucketHook);
  context_.hook = std::move(hook);
  for (const auto& reducer : batches_) {
    reducer->lay_out_residuals(reducer->residuals().take());
  }
}

}  // namespace kolo::tensors
