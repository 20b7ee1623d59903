#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <nlohmann/json.hpp>

#include "kolo/collectives.hpp"
#include "kolo/error.hpp"
#include "kolo/json_objects.hpp"
#include "kolo/objects.hpp"
#include "train/optimizer/step_protocol.hpp"
#include "train/tensors/run_or_throw_on_all.hpp"

namespace kolo::train {
namespace {

constexpr const char* kJoin = "DistributedOptimizer::join()";

// A joined rank looks this often whether it can submit further buckets.
constexpr auto kPause = std::chrono::milliseconds(1);

/// Active ranks meet in a barrier before they reduce and in each call that needs all ranks; a
/// joined rank meets them there for its join(), which is a mismatch that tells all of it. From then
/// on, until the end of the step, active ranks announce what they do.
class ShardedSteps final : public StepProtocol {
 public:
  ShardedSteps(TrainingContext& context, GradientReducers& reducers, OptionSync& option_sync,
               const RankComparison& comparison, ShardedStepHooks hooks);
  ~ShardedSteps() override;

  void announce(const std::string& call, const nlohmann::json& arguments) override;
  void begin_reduction(bool is_discarded) override;
  at::Tensor step(const LossClosure& closure, const std::function<void()>& reduce) override;
  void skip() override;
  void drop() override;
  void restart() override { context_.step.joined_ranks.clear(); }
  int join() override;
  GlobalGradients::GatherRows gather_rows() override;
  int copies_of_gradients() const override;

 private:
  std::vector<int> find_joined(const std::string& call) override;
  void meet_active(const std::string& purpose);
  bool learn_joined(const MismatchError& error);
  void meet(const std::string& purpose, const std::function<bool()>& meanwhile = nullptr);
  void call_in_step(const char* call, const std::function<void()>& collective);
  void update();
  bool wait_for_active();
  void follow_one_step();
  nlohmann::json exchange(const nlohmann::json& own);

  OptionSync& option_sync_;
  const RankComparison& comparison_;
  ShardedStepHooks hooks_;
  std::optional<int> last_active_;  // of the ranks that have announced anything
};

ShardedSteps::ShardedSteps(TrainingContext& context, GradientReducers& reducers,
                           OptionSync& option_sync, const RankComparison& comparison,
                           ShardedStepHooks hooks)
    : StepProtocol(context, reducers),
      option_sync_(option_sync),
      comparison_(comparison),
      hooks_(std::move(hooks)) {
  context.unit_calls->before_gather = [this](const std::string& reducer, std::size_t unit,
                                             std::size_t slot) {
    announce("gather", {reducer, unit, slot});
  };
  context.unit_calls->learn_joined = [this](const MismatchError& error) {
    return learn_joined(error);
  };
  hooks_.calls["gather"] = [this](const nlohmann::json& of) {
    reducers_.gather_for_others(of[0].get<std::string>(), of[1], of[2]);
  };
  hooks_.calls["step()"] = [this](const nlohmann::json& options) {
    OptionSync::apply(options, context_.groups);
    option_sync_.merge(context_.groups, context_.wrapped.groups());
    update();
    hooks_.end_step();
  };
  hooks_.calls["refused"] = [this](const nlohmann::json&) { restart(); };
}

ShardedSteps::~ShardedSteps() {
  context_.unit_calls->before_gather = nullptr;
  context_.unit_calls->learn_joined = nullptr;
  if (!reducers_.are_sharded()) return;
  for (const auto& reducer : reducers_) {
    if (const ParameterShards* const shards = reducer->shards()) {
      shards->erase_state(context_.wrapped);
    }
  }
  try {
    context_.wrapped.create_expected_state();  // for whoever steps the wrapped optimizer next
  } catch (...) {
    // Without memory for it, that step will throw.
  }
}

// --- which ranks have joined ---

/// A barrier that is numbered like the collectives of units, after those in flight. Throws
/// MismatchError on all ranks if purposes differ. Until it returns false, calls `meanwhile` again
/// and again while it waits.
void ShardedSteps::meet(const std::string& purpose, const std::function<bool()>& meanwhile) {
  if (context_.set.size() == 1) return;
  for (GatheredUnits* const units : reducers_.units()) units->finish_gathering();
  Handle all = barrier_async(context_.unit_calls->next({.process_set = &context_.set}, purpose));
  while (meanwhile && meanwhile() && !all.wait_for(kPause)) {
  }
  all.wait();
}

/// A meeting of active ranks, where joined ones are no error: it finds out who they are.
void ShardedSteps::meet_active(const std::string& purpose) {
  // A unit that is being gathered may show it, too: the joined ranks then wait for a call.
  for (GatheredUnits* const units : reducers_.units()) units->finish_gathering();
  if (context_.have_some_joined()) return;
  try {
    meet(purpose);
  } catch (const MismatchError& error) {
    if (!learn_joined(error)) throw;
  }
}

/// After a mismatch of numbered collectives: whether it happened because some ranks have joined. If
/// so, collective: all ranks come here, since all have the same text, and joined ranks then wait
/// for calls.
bool ShardedSteps::learn_joined(const MismatchError& error) {
  if (std::string_view(error.what()).find(kJoin) == std::string_view::npos) return false;
  std::int64_t has_joined = context_.step.is_active ? 0 : 1;
  std::vector<std::int64_t> all(static_cast<std::size_t>(context_.set.size()));
  allgather({&has_joined, DType::Int64, {1}, Device{}}, [&](const auto&) { return all.data(); },
            {.name = context_.prefix + ".joined", .process_set = &context_.set});
  restart();
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i] != 0) context_.step.joined_ranks.push_back(context_.set.ranks()[i]);
  }
  return true;
}

std::vector<int> ShardedSteps::find_joined(const std::string& call) {
  const bool is_news = !context_.have_some_joined();
  meet_active(call);
  const std::vector<int> joined = context_.step.joined_ranks;
  if (is_news && !joined.empty()) {
    announce("refused", nullptr);
    restart();
  }
  return joined;
}

// --- what active ranks announce ---

void ShardedSteps::announce(const std::string& call, const nlohmann::json& arguments) {
  if (context_.step.is_active && context_.have_some_joined()) exchange({call, arguments});
}

/// Joined ranks send null. Returns the call of the first active rank, or null if all have joined.
nlohmann::json ShardedSteps::exchange(const nlohmann::json& own) {
  const std::vector<nlohmann::json> calls =
      allgather_object(own, {.name = context_.prefix + ".call", .process_set = &context_.set});
  const nlohmann::json* first = nullptr;
  int first_rank = 0;
  restart();
  for (std::size_t i = 0; i < calls.size(); ++i) {
    if (calls[i].is_null()) {
      context_.step.joined_ranks.push_back(context_.set.ranks()[i]);
      continue;
    }
    last_active_ = context_.set.ranks()[i];
    if (first == nullptr) {
      first = &calls[i];
      first_rank = *last_active_;
    }
    if (calls[i] == *first) continue;
    const auto text_of = [&](const nlohmann::json& call) {
      const auto name = call[0].get<std::string>();
      return calls[i][0] == (*first)[0] ? name + " with " + call[1].dump() : name;
    };
    throw MismatchError("DistributedOptimizer: while some ranks have joined, rank " +
                        std::to_string(*last_active_) + " called " + text_of(calls[i]) +
                        " where rank " + std::to_string(first_rank) + " called " + text_of(*first) +
                        ". All must do the same.");
  }
  return first != nullptr ? *first : nlohmann::json();
}

/// Other ranks need a joined rank's shards: it takes part in their steps, without gradients of its
/// own, until no rank is active.
int ShardedSteps::join() {
  StepPhases& phases = context_.step.phases;
  if (phases.current() == StepPhase::Synchronized) hooks_.drop_gradients();
  const auto make_active = [](TrainingContext* context) { context->step.is_active = true; };
  const std::unique_ptr<TrainingContext, decltype(make_active)> joined(&context_, make_active);
  context_.step.is_active = false;
  while (wait_for_active()) {
    follow_one_step();
    phases.restart();
  }
  // Of what this rank has submitted for steps that nobody takes.
  hooks_.calls.at("reduction")(/*is_discarded=*/true);
  phases.restart();
  restart();
  for (GatheredUnits* const units : reducers_.units()) units->restart();
  reducers_.clear_gradients();
  comparison_.compare_last();
  // If no rank has announced anything, all have joined simultaneously.
  return std::exchange(last_active_, std::nullopt).value_or(context_.set.ranks().back());
}

/// Submits buckets as active ranks do in backward(), until one of them makes another call. Returns
/// false if all have joined.
bool ShardedSteps::wait_for_active() {
  if (!context_.have_some_joined()) {
    try {
      // Active ranks wait for these buckets before they reduce.
      meet(kJoin, [this] {
        bool is_left = false;
        for (const auto& reducer : reducers_) is_left |= reducer->submit_without_wait();
        return is_left;
      });
      context_.step.joined_ranks = context_.set.ranks();
    } catch (const MismatchError& error) {
      if (!learn_joined(error)) throw;
    }
  }
  return context_.step.joined_ranks.size() < context_.set.ranks().size();
}

/// Until the end of the active ranks' step, or until none is active.
void ShardedSteps::follow_one_step() {
  do {
    const nlohmann::json call = exchange(nullptr);
    if (call.is_null()) return;
    hooks_.calls.at(call[0].get<std::string>())(call[1]);
  } while (context_.have_some_joined());
}

// --- the end of a step ---

void ShardedSteps::begin_reduction(bool is_discarded) {
  if (!context_.step.is_active) return;
  meet_active("the end of backward()");
  announce("reduction", is_discarded);
}

/// Runs a collective between the reduction and the end of a step, for this rank's call `call`. If
/// ranks call different ones, all throw MismatchError, and the step ends without an update.
void ShardedSteps::call_in_step(const char* call, const std::function<void()>& collective) {
  try {
    collective();
  } catch (const MismatchError& error) {
    hooks_.abandon();
    throw MismatchError("DistributedOptimizer: rank " +
                        std::to_string(context_.set.runtime().rank()) + " called " + call +
                        " with reduced gradients, unlike other ranks. Let all ranks step, or all "
                        "drop the gradients. " +
                        error.what());
  }
}

/// Numbered like the collectives of units, so that ranks that call something else, such as step(),
/// get an error at once.
GlobalGradients::GatherRows ShardedSteps::gather_rows() {
  return [this](const TensorView& own, void* all) {
    constexpr const char* kCall = "clip_grad_norm_() or a step with GradScaler";
    call_in_step(kCall, [&] {
      allgather(
          own, [all](const auto&) { return all; },
          context_.unit_calls->next({.process_set = &context_.set}, kCall));
    });
  };
}

int ShardedSteps::copies_of_gradients() const {
  return context_.sets.replicas != nullptr ? context_.sets.replicas->size() : 1;
}

at::Tensor ShardedSteps::step(const LossClosure& closure, const std::function<void()>& reduce) {
  at::Tensor loss;
  if (closure) {
    const at::AutoGradMode enable(true);
    loss = closure();
  }
  reduce();
  reducers_.require_whole();
  if (context_.have_some_joined()) announce("step()", OptionSync::describe(context_.groups));
  update();
  return loss;
}

/// Steps bucket by bucket, so that one is gathered while the next is stepped; all together if the
/// wrapped optimizer must be stepped once. If it throws on a rank, the others learn the reason, and
/// throw, where they wait for that rank's updates.
void ShardedSteps::update() {
  call_in_step("step()", [&] { meet("step()"); });
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
  const bool is_one_step = !context_.wrapped.steps_leaves_separately();
  const auto step = [&] {
    attempt([&] {
      if (error) return;
      const bool has_leaves =
          std::ranges::any_of(leaves, std::not_fn(&std::vector<at::Tensor>::empty));
      if (has_leaves || is_one_step) context_.wrapped.step_leaves(leaves);
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
  restart();
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

void ShardedSteps::skip() {
  announce("skip", nullptr);
  reducers_.clear_gradients();
  restart();
}

/// Ranks that step would wait for this one to update its shards: they get an error instead.
void ShardedSteps::drop() {
  call_in_step("zero_grad()", [&] { meet("zero_grad()"); });
}

}  // namespace

std::unique_ptr<StepProtocol> make_sharded_steps(TrainingContext& context,
                                                 GradientReducers& reducers,
                                                 OptionSync& option_sync,
                                                 const RankComparison& comparison,
                                                 ShardedStepHooks hooks) {
  return std::make_unique<ShardedSteps>(context, reducers, option_sync, comparison,
                                        std::move(hooks));
}

}  // namespace kolo::train
