#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "kolo/process_set.hpp"
#include "kolo/torch/tensor_handle.hpp"

#pragma GCC visibility push(default)
namespace kolo {

/// A bucket whose gradients have arrived.
struct GradientBucket {
  std::size_t index = 0;  ///< among the optimizer's buckets; the same on all ranks
  std::string name;       ///< unique, the same on all ranks: the prefix for the hook's operations
  /// [n], of one dtype: this rank's gradients one after another, in place, not copied. Gaps, and
  /// gradients that this rank does not have, are zeros.
  at::Tensor gradients;
  std::vector<at::Tensor> parameters{};        ///< of `gradients`, in order; without sparse ones
  std::vector<std::string> parameter_names{};  ///< of `parameters`: the optimizer's, unique
  /// Views of `gradients`, one per parameter, in its shape. Do not use the parameters' grad().
  std::vector<at::Tensor> views{};
  /// With BucketHook::error_feedback: the residual of each parameter, in its shape and float32,
  /// zeros at first. Empty for buckets of complex gradients.
  std::vector<at::Tensor> residuals{};
  std::int64_t step = 0;              ///< steps that the optimizer has taken; the same on all ranks
  ProcessSet* process_set = nullptr;  ///< the optimizer's, for the hook's operations
  /// Whether any rank has the gradient of `parameters[i]`. Only valid inside TensorHandle::then. A
  /// gradient that no rank has is not used, whatever the hook returns for it.
  std::function<bool(std::size_t i)> is_present{};
};

/// A custom reduction of a bucket, like DDP's communication hooks; see
/// DistributedOptimizer::register_bucket_hook. It converts from a function:
///
///   optimizer.register_bucket_hook([](kolo::GradientBucket bucket) {
///     return kolo::allreduce_async_(bucket.gradients,
///                                   {.name = bucket.name, .process_set = bucket.process_set});
///   });
struct BucketHook {
  /// Called inside backward() when the bucket's last gradient has arrived, or in step() or
  /// synchronize() for an incomplete bucket. It starts an operation and must not wait for it. Put
  /// work on the result into TensorHandle::then, which step() or synchronize() runs in the order of
  /// buckets and which may therefore run further collectives.
  /// @return the operation whose result is the reduced gradients [n], `gradients` or another
  ///   tensor; nothing if the function has reduced `gradients` in place already
  using Function = std::function<std::optional<TensorHandle>(GradientBucket bucket)>;
  using State = std::map<std::string, at::Tensor>;

  BucketHook() = default;  ///< the ordinary reduction
  template <class Callable>
    requires std::is_invocable_r_v<std::optional<TensorHandle>, Callable&, GradientBucket>
  explicit(false) BucketHook(Callable function) : reduce(std::move(function)) {}

  explicit operator bool() const { return reduce != nullptr; }

  Function reduce{};
  /// Whether the optimizer keeps residuals for the function. Each rank has its own; the function
  /// reads and writes them. The optimizer keeps them per parameter, restores them after a step that
  /// is skipped, rescales them with the GradScaler, and saves them in checkpoints, which resume on
  /// any number of ranks.
  bool error_feedback = false;
  /// Returns further state to save in checkpoints: float32 or float64 tensors, the same on all
  /// ranks. Called by save() on the set's first rank.
  std::function<State()> state{};
  /// Restores that state, given in CPU memory; empty if the checkpoint has none. Called by load()
  /// on all ranks.
  std::function<void(const State&)> set_state{};
};

}  // namespace kolo
#pragma GCC visibility pop
