#include "torch/wrapped/libtorch_optimizer.hpp"

#include <memory>
#include <typeinfo>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <c10/util/Type.h>
#include <torch/optim/lbfgs.h>

#include "kolo/torch/parameter_sync.hpp"
#include "torch/wrapped/fused_step.hpp"
#include "torch/wrapped/libtorch_state.hpp"
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
  if (fused_ && !has_fused_step(optimizer_)) {
    return "fused = true steps torch::optim::Adam, AdamW and SGD, not " + class_name() +
           ". Leave it out.";
  }
  return {};
}

at::Tensor LibTorchOptimizer::step(const LossClosure& closure) {
  if (!fused_) return optimizer_.step(closure);
  at::Tensor loss;
  if (closure) {
    const at::AutoGradMode enable(true);
    loss = closure();
  }
  fused_step(optimizer_);
  return loss;
}

void LibTorchOptimizer::step_leaves(std::size_t group, std::vector<at::Tensor> leaves) {
  const SwappedParameters swapped(optimizer_, group, std::move(leaves));
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
  optimizer_.state()[leaf.unsafeGetTensorImpl()] = state_with(new_state(optimizer_), fields);
}

void LibTorchOptimizer::erase_state(const at::Tensor& leaf) {
  optimizer_.state().erase(leaf.unsafeGetTensorImpl());
}

std::vector<KnownField> LibTorchOptimizer::known_fields() {
  const auto state = new_state(optimizer_);
  return state == nullptr ? std::vector<KnownField>{} : known_fields_of(*state);
}

std::size_t LibTorchOptimizer::count_accepted(const std::vector<StateField>& fields) {
  auto state = new_state(optimizer_);
  return state == nullptr ? 0 : fields_of(*state_with(std::move(state), fields)).size();
}

void LibTorchOptimizer::broadcast_state(int root, ProcessSet& set) {
  broadcast_optimizer_state(optimizer_, root, &set);
}

}  // namespace kolo::tensors
