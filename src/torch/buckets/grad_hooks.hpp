#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

namespace torch::autograd {
struct FunctionPreHook;
struct Node;
}  // namespace torch::autograd

namespace kolo::tensors {

/// Calls back for every gradient that backward() accumulates. What a callback throws ends
/// backward().
class GradHooks {
 public:
  using Callback = std::function<void(std::size_t index)>;

  /// Calls `before(i)` just before a new gradient is added to parameters[i].grad() and `after(i)`
  /// just after it, on the thread of backward().
  GradHooks(const std::vector<at::Tensor>& parameters, Callback before, Callback after);
  ~GradHooks();
  GradHooks(const GradHooks&) = delete;  // the hooks refer to it
  GradHooks& operator=(const GradHooks&) = delete;

 private:
  struct Installed {
    // The parameter holds it weakly: without an owner it would be destroyed with its hooks.
    std::shared_ptr<torch::autograd::Node> accumulator;
    const torch::autograd::FunctionPreHook* before;
    std::uintptr_t after;
  };

  Callback before_;
  Callback after_;
  std::vector<Installed> installed_;
};

}  // namespace kolo::tensors
