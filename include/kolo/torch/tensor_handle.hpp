#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "kolo/handle.hpp"

#pragma GCC visibility push(default)
namespace kolo {

/// A Handle to an operation on tensors and to its result, one at::Tensor or several. Move-only. The
/// waiting thread delivers the result, so tensors hold it only after a wait.
template <class Result>
class [[nodiscard]] ResultHandle {
 public:
  ResultHandle() = default;
  /// @param finish makes the result after the operation has succeeded; runs on the waiting thread
  ResultHandle(Handle handle, std::function<Result()> finish)
      : handle_(std::move(handle)), finish_(std::move(finish)) {}

  /// As in Handle.
  bool is_ready() const { return handle_.is_ready(); }
  void wait() {
    handle_.wait();
    deliver();
  }
  bool wait_for(std::chrono::nanoseconds duration) {
    if (!handle_.wait_for(duration)) return false;
    deliver();
    return true;
  }

  /// Waits.
  /// @return the result; of an in-place operation the caller's own tensors
  Result result() {
    wait();
    return *result_;
  }

  /// Gives the operation the result next(result()); `next` runs on the waiting thread.
  template <class Next>
  ResultHandle<std::invoke_result_t<Next, Result>> then(Next next) && {
    return {std::move(handle_),
            [finish = std::move(finish_), next = std::move(next)] { return next(finish()); }};
  }

  /// @return the operation, and what makes its result once it has succeeded
  std::pair<Handle, std::function<Result()>> split() && {
    return {std::move(handle_), std::move(finish_)};
  }

 private:
  void deliver() {
    if (!result_) result_ = finish_();
  }

  Handle handle_;
  std::function<Result()> finish_;
  std::optional<Result> result_;
};

using TensorHandle = ResultHandle<at::Tensor>;
using TensorsHandle = ResultHandle<std::vector<at::Tensor>>;

}  // namespace kolo
#pragma GCC visibility pop
