#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

namespace kolo::train {

/// Calls back for every gradient that backward() accumulates. An exception of a callback ends
/// backward().
class GradHooks {
 public:
  using Callback = std::function<void(std::size_t index)>;

  /// Calls `before(i)` just before a new gradient is added to parameters[i].grad() and `after(i)`
  /// just after it, on the thread of backward().
  GradHooks(const std::vector<at::Tensor>& parameters, Callback before, Callback after);
  ~GradHooks();
  /// Whether any living GradHooks calls back for the parameter.
  static bool are_on(const at::Tensor& parameter);
  GradHooks(const GradHooks&) = delete;  // the hooks refer to it
  GradHooks& operator=(const GradHooks&) = delete;

 private:
  struct Installed;

  Callback before_;
  Callback after_;
  std::vector<Installed> installed_;
};

}  // namespace kolo::train
