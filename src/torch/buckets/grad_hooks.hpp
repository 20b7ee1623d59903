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

/// Calls back for every gradient that backward() accumulates, until it is destroyed. What a
/// callback throws comes out of backward().
class GradHooks {
 public:
  using Callback = std::function<void(std::size_t index)>;

  /// On the thread of backward(), `before(i)` is called just before a new gradient is added to
  /// parameters[i].grad(), and `after(i)` once it holds it.
  GradHooks(const std::vector<at::Tensor>& parameters, Callback before, Callback after);
  ~GradHooks();
  GradHooks(const GradHooks&) = delete;  // the hooks refer to it
  GradHooks& operator=(const GradHooks&) = delete;

 private:
  struct Installed {
    // Held weakly by the parameter: without an owner it would die, and the hooks with it.
    std::shared_ptr<torch::autograd::Node> accumulator;
    const torch::autograd::FunctionPreHook* before;
    std::uintptr_t after;
  };

  Callback before_;
  Callback after_;
  std::vector<Installed> installed_;
};

}  // namespace kolo::tensors
