#include "torch/wrapped/libtorch_optimizer.hpp"

#include <memory>
#include <typeinfo>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <c10/util/Type.h>
#include <torch/optim/lbfgs.h>

#include "kolo/torch/parameter_sync.hpp"
#include "torch/wrapped/fused_step.hpp"
#include "torch/wrapped/libtorch_classes.hpp"
#include "torch/wrapped/libtorch_state.hpp"
#include "torch/wrapped/option_fields.hpp"
#include "torch/wrapped/swapped_parameters.hpp"

namespace kolo::tensors {

std::string LibTorchOptimizer::class_name() const {
  return c10::demangle(typeid(optimizer_).name());
}

std::string LibTorchOptimizer::problem() const {
  if (dynamic_cast<const torch::optim::LBFGS*>(&optimizer_) != nullptr) {
    return "LBFGS evaluates its closure several times a step and chooses by this rank's loss, so "
           "that ranks would diverge. Use an optimizer that does not.";
  }
  for (const auto& group : optimizer_.param_groups()) {
    if (std::string problem = problem_with_options(group.options()); !problem.empty()) {
      return problem;
    }
  }
  if (fused_ && !has_fused_step(optimizer_)) {
    return "fused = true steps torch::optim::Adam, AdamW and SGD, not " + class_name() +
           ". Leave it out.";
  }
  return {};
}

at::Tensor LibTorchOptimizer::step(const LossClosure& closure) {
  create_expected_state();
  if (!fused_) return optimizer_.step(closure);
  at::Tensor loss;
  if (closure) {
    const at::AutoGradMode enable(true);
    loss = closure();
  }
  fused_step(optimizer_);
  return loss;
}

/// A derived class may override step().
bool LibTorchOptimizer::steps_leaves_separately() const {
  return visit_libtorch_classes(
      [&]<class Class>(Class) { return typeid(optimizer_) == typeid(typename Class::Optimizer); });
}

void LibTorchOptimizer::step_leaves(std::vector<std::vector<at::Tensor>> leaves) {
  const SwappedParameters swapped(optimizer_, std::move(leaves));
  step(nullptr);
}

bool LibTorchOptimizer::has_state(const at::Tensor& leaf) const {
  return optimizer_.state().count(leaf.unsafeGetTensorImpl()) != 0;
}

std::optional<std::vector<StateField>> LibTorchOptimizer::state(const at::Tensor& leaf) const {
  const auto found = optimizer_.state().find(leaf.unsafeGetTensorImpl());
  if (found == optimizer_.state().end()) return {};
  return fields_of(*found->second);
}

void LibTorchOptimizer::set_state(const at::Tensor& leaf, const std::vector<StateField>& fields) {
  auto state = make_state(optimizer_, fields);
  optimizer_.state()[leaf.unsafeGetTensorImpl()] = std::move(state);
}

void LibTorchOptimizer::erase_state(const at::Tensor& leaf) {
  optimizer_.state().erase(leaf.unsafeGetTensorImpl());
}

void LibTorchOptimizer::create_expected_state() { tensors::create_expected_state(optimizer_); }

std::vector<KnownField> LibTorchOptimizer::known_fields() { return known_fields_of(optimizer_); }

std::size_t LibTorchOptimizer::count_accepted(const std::vector<StateField>& fields) {
  return fields_of(*make_state(optimizer_, fields)).size();
}

void LibTorchOptimizer::broadcast_state(int root, ProcessSet& set) {
  broadcast_optimizer_state(optimizer_, root, &set);
}

}  // namespace kolo::tensors
