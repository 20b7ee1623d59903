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
#include "kolo/tensor_handle.hpp"

#pragma GCC visibility push(default)
namespace kolo {

/// A bucket whose gradients have arrived.
struct GradientBucket {
  std::size_t index = 0;  ///< among the optimizer's buckets; the same on all ranks
  std::string name;       ///< unique, the same on all ranks: the prefix for the hook's operations
  /// [n], of one dtype: this rank's gradients one after another, in the memory that they lie in;
  /// zeros in gaps, and for gradients that this rank does not have.
  at::Tensor gradients;
  std::vector<at::Tensor> parameters{};        ///< of `gradients`, in order; without sparse ones
  std::vector<std::string> parameter_names{};  ///< of `parameters`: the optimizer's, unique
  /// Of `gradients`: that of each parameter, in its shape. The parameters' grad() must not be used.
  std::vector<at::Tensor> views{};
  /// With BucketHook::error_feedback: what each parameter is owed, in its shape and float32, zeros
  /// at first. None in buckets of complex gradients.
  std::vector<at::Tensor> residuals{};
  std::int64_t step = 0;              ///< steps that the optimizer has taken; the same on all ranks
  ProcessSet* process_set = nullptr;  ///< the optimizer's, for the hook's operations
  /// Inside TensorHandle::then alone: whether any rank has the gradient of `parameters[i]`. One
  /// that none has is not used, whatever the hook makes of it.
  std::function<bool(std::size_t i)> is_present{};
};

/// A program's own reduction of a bucket, like DDP's communication hooks; see
/// DistributedOptimizer::register_bucket_hook. A function makes one:
///
///   optimizer.register_bucket_hook([](kolo::GradientBucket bucket) {
///     return kolo::allreduce_async_(bucket.gradients,
///                                   {.name = bucket.name, .process_set = bucket.process_set});
///   });
struct BucketHook {
  /// Called inside backward() when the bucket's last gradient has arrived, or for an incomplete
  /// bucket in step() or synchronize(): start an operation and do not wait for it. Work on the
  /// result belongs into TensorHandle::then, which step() or synchronize() runs in the order of
  /// buckets, so it may run further collectives.
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
  /// Whether the optimizer keeps residuals for the function: each rank its own, which it reads and
  /// writes, and which is added to later gradients. They belong to parameters; after a step that is
  /// not used they are what they were before; a GradScaler scales them; checkpoints hold them, and
  /// give them back on any number of ranks.
  bool error_feedback = false;
  /// What checkpoints hold besides: float32 or float64 tensors, the same on all ranks. Called by
  /// save() on the set's first rank.
  std::function<State()> state{};
  /// Takes it back, in CPU memory, or nothing from a checkpoint without. Called by load() on all
  /// ranks.
  std::function<void(const State&)> set_state{};
};

}  // namespace kolo
#pragma GCC visibility pop
