#include "train/gradients/grad_hooks.hpp"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include "train/tensors/graph_node.hpp"

namespace kolo::train {
namespace {

using torch::autograd::variable_list;

/// Calls back before or after a node that accumulates gradients, depending on how it is installed.
class Hook final : public torch::autograd::FunctionPreHook,
                   public torch::autograd::FunctionPostHook {
 public:
  Hook(const GradHooks::Callback& callback, at::Tensor parameter, std::size_t index)
      : callback_(callback), parameter_(std::move(parameter)), index_(index) {}

  variable_list operator()(const variable_list& gradients) override {
    call_back(gradients);
    return gradients;
  }
  variable_list operator()(const variable_list& outputs, const variable_list& gradients) override {
    call_back(gradients);
    return outputs;
  }

 private:
  /// Autograd also runs the node without a gradient, and for a parameter that the program has
  /// frozen since its forward pass, whose gradient the node drops.
  void call_back(const variable_list& gradients) const {
    if (gradients.front().defined() && parameter_.requires_grad()) callback_(index_);
  }

  const GradHooks::Callback& callback_;
  const at::Tensor parameter_;
  std::size_t index_;
};

}  // namespace

struct GradHooks::Installed {
  // The parameter refers to it weakly: without this owner, it would be destroyed with its hooks.
  NodeOwner accumulator;
  const torch::autograd::FunctionPreHook* before;
  std::uintptr_t after;
};

GradHooks::GradHooks(const std::vector<at::Tensor>& parameters, Callback before, Callback after)
    : before_(std::move(before)), after_(std::move(after)) {
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const bool is_frozen = !parameters[i].requires_grad();
    if (is_frozen) parameters[i].requires_grad_(true);  // otherwise it has no accumulator
    auto accumulator = torch::autograd::impl::grad_accumulator(parameters[i]);
    if (is_frozen) parameters[i].requires_grad_(false);
    auto hook = std::make_unique<Hook>(before_, parameters[i], i);
    const torch::autograd::FunctionPreHook* const before_key = hook.get();
    accumulator->add_pre_hook(std::move(hook));
    const std::uintptr_t after_key =
        accumulator->add_post_hook(std::make_unique<Hook>(after_, parameters[i], i));
    installed_.push_back({std::move(accumulator), before_key, after_key});
  }
}

GradHooks::~GradHooks() {
  for (const Installed& hook : installed_) {
    std::erase_if(hook.accumulator->pre_hooks(),
                  [&](const auto& other) { return other.get() == hook.before; });
    hook.accumulator->del_post_hook(hook.after);
  }
}

bool GradHooks::are_on(const at::Tensor& parameter) {
  const auto accumulator = torch::autograd::impl::try_get_grad_accumulator(parameter);
  if (accumulator == nullptr) return false;
  return std::ranges::any_of(accumulator->pre_hooks(), [](const auto& hook) {
    return dynamic_cast<const Hook*>(hook.get()) != nullptr;
  });
}

}  // namespace kolo::train
