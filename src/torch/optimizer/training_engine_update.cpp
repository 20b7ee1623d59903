// TrainingEngine: updates with reduced gradients, and skipped steps.
#include <algorithm>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include "kolo/error.hpp"
#include "torch/optimizer/training_engine.hpp"
#include "torch/tensors/agreement.hpp"
#include "torch/tensors/write_protection.hpp"

namespace kolo::tensors {

at::Tensor TrainingEngine::step(const LossClosure& closure) {
  guards_.require_untouched();
  merge_options();
  at::Tensor loss;
  try {
    loss = context_.is_sharded() ? step_shards(closure) : step_unsharded(closure);
  } catch (...) {
    comparison_.note_failure(text_of_current_error());
    compare_replicas_after_failure();
    throw;
  }
  batches_.finish_residuals(/*is_used=*/true);
  ++context_.steps;
  guards_.step();
  reporter_.step();
  end_step(StepEnd::Step);
  return loss;
}

/// If the wrapped optimizer has thrown on some ranks only, the others may compare replicas now.
void TrainingEngine::compare_replicas_after_failure() {
  if (context_.is_sharded() || context_.step.phases.current() != StepPhase::Synchronized) return;
  try {
    replica_check_.end_step(/*can_differ=*/false);
  } catch (const MismatchError&) {
    // This rank's own error says more.
  }
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
  call_in_step("step()", [&] { synchronize_ranks("step()"); });
  const WritesAllowed writes;
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
  for (const auto& reducer : batches_) {
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
  for (const auto& reducer : batches_) {
    attempt([&] { reducer->shards()->memory().end_update(failure); });
  }
  batches_.clear_gradients();
  expect_all_active();
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
  if (context_.is_sharded()) batches_.clear_gradients();
  batches_.finish_residuals(/*is_used=*/false);
  expect_all_active();
  end_step(StepEnd::Skipped);
}

/// The reduced gradients are dropped on all ranks. If the optimizer is sharded, ranks that step
/// would wait for this one to update its shards: they get an error instead.
void TrainingEngine::end_dropped_step() {
  if (context_.is_sharded()) {
    call_in_step("zero_grad()", [&] { synchronize_ranks("zero_grad()"); });
  }
  context_.unit_calls->restart();
  comparison_.note(StepEnd::Dropped);
}

/// After an error on all ranks: nothing is updated.
void TrainingEngine::abandon_step() {
  context_.step.phases.restart();
  context_.unit_calls->restart();
  comparison_.restart();
  batches_.finish_residuals(/*is_used=*/false);
  batches_.clear_gradients();
}

/// After an update or a skipped step.
void TrainingEngine::end_step(StepEnd end) {
  StepPhases& phases = context_.step.phases;
  const bool is_reduced = phases.current() == StepPhase::Synchronized;
  const bool is_common = local_.is_on() || is_reduced;
  phases.restart();
  context_.unit_calls->restart();
  if (is_reduced) comparison_.note(end);
  const bool is_due = local_.end_step();
  if (is_due) average_parameters();
  if (is_common) replica_check_.end_step(/*can_differ=*/local_.is_on() && !is_due);
}

}  // namespace kolo::tensors
