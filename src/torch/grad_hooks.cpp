#include "torch/grad_hooks.hpp"

#include <utility>

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

namespace kolo::tensors {
namespace {

class PostHook final : public torch::autograd::FunctionPostHook {
 public:
  PostHook(const std::function<void(std::size_t)>& callback, std::size_t index)
      : callback_(callback), index_(index) {}

  torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                            const torch::autograd::variable_list&) override {
    callback_(index_);
    return outputs;
  }

 private:
  const std::function<void(std::size_t)>& callback_;
  std::size_t index_;
};

}  // namespace

GradHooks::GradHooks(const std::vector<at::Tensor>& parameters,
                     std::function<void(std::size_t)> on_gradient)
    : on_gradient_(std::move(on_gradient)) {
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    auto accumulator = torch::autograd::impl::grad_accumulator(parameters[i]);
    const std::uintptr_t key =
        accumulator->add_post_hook(std::make_unique<PostHook>(on_gradient_, i));
    installed_.push_back({std::move(accumulator), key});
  }
}

GradHooks::~GradHooks() {
  for (const Installed& hook : installed_) hook.accumulator->del_post_hook(hook.key);
}

}  // namespace kolo::tensors
