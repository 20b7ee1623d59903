#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

namespace torch::autograd {
struct Node;
}

namespace kolo::tensors {

/// Calls back for every gradient that backward() has accumulated, until it is destroyed.
class GradHooks {
 public:
  /// `on_gradient(i)` is called on the thread of backward() once parameters[i].grad() holds the new
  /// gradient; what it throws comes out of backward().
  GradHooks(const std::vector<at::Tensor>& parameters,
            std::function<void(std::size_t index)> on_gradient);
  ~GradHooks();
  GradHooks(const GradHooks&) = delete;  // the hooks refer to it
  GradHooks& operator=(const GradHooks&) = delete;

 private:
  struct Installed {
    // Held weakly by the parameter: without an owner it would die, and the hook with it.
    std::shared_ptr<torch::autograd::Node> accumulator;
    std::uintptr_t key;
  };

  std::function<void(std::size_t)> on_gradient_;
  std::vector<Installed> installed_;
};

}  // namespace kolo::tensors
