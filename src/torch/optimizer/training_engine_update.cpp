// TrainingEngine: updates with reduced gradients, and skipped steps.
#include <exception>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>

#include "torch/optimizer/training_engine.hpp"
#include "torch/tensors/write_protection.hpp"

namespace kolo::tensors {

at::Tensor TrainingEngine::step(const LossClosure& closure) {
  guards_.require_untouched();
  merge_options();
  at::Tensor loss = context_.is_sharded() ? step_shards(closure) : step_unsharded(closure);
  batches_.finish_residuals(/*is_used=*/true);
  ++context_.steps;
  guards_.step();
  reporter_.step();
  end_step();
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

/// Steps bucket by bucket, so that one is gathered while the next is stepped.
void TrainingEngine::update_shards() {
  const WritesAllowed writes;
  std::exception_ptr error;
  const auto attempt = [&](const auto& work) {
    try {
      work();
    } catch (...) {
      if (!error) error = std::current_exception();  // continue: other ranks wait for this one
    }
  };
  for (const auto& reducer : batches_) {
    const ParameterShards& shards = *reducer->shards();
    shards.memory().begin_update();
    for (std::size_t i = 0; i < reducer->buckets().buckets().size(); ++i) {
      attempt([&] {
        std::vector<at::Tensor> leaves = shards.begin_update(i);
        if (error || leaves.empty()) return;
        wrapped_->step_leaves(reducer->optimizer_group_of(i), std::move(leaves));
        shards.end_update(i);
      });
      shards.memory().end_bucket(i);
    }
  }
  for (const auto& reducer : batches_) {
    attempt([&] { reducer->shards()->memory().end_update(); });
  }
  batches_.clear_gradients();
  expect_all_active();
  if (error) std::rethrow_exception(error);
}

/// Ends a step without an update and without counting it.
void TrainingEngine::skip_step() {
  if (context_.step.is_active) commands_.announce(SkipCommand{});
  if (context_.is_sharded()) batches_.clear_gradients();
  batches_.finish_residuals(/*is_used=*/false);
  expect_all_active();
  end_step();
}

/// After an update or a skipped step.
void TrainingEngine::end_step() {
  StepPhases& phases = context_.step.phases;
  const bool is_common = local_.is_on() || phases.current() == StepPhase::Synchronized;
  phases.restart();
  const bool is_due = local_.end_step();
  if (is_due) average_parameters();
  if (is_common) replica_check_.end_step(/*can_differ=*/local_.is_on() && !is_due);
}

}  // namespace kolo::tensors
