#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#pragma GCC visibility push(default)
namespace kolo {

/// While it lives, LibTorch runs operators of this thread in a 16-bit dtype if they gain by it, as
/// matrix products do, and in float32 if they need the range. Semantics of torch.autocast. Call
/// backward() outside:
///
///   at::Tensor loss;
///   {
///     const kolo::Autocast autocast(at::kBFloat16);
///     loss = loss_of(model->forward(rows));
///   }
///   scaler.scale(loss).backward();
///
/// Parameters stay float32, and so do their gradients. Regions nest; one that is not enabled inside
/// another runs in the dtypes of its inputs. Each restores what it found. Construct and destroy it
/// on one thread, inner regions first.
///
/// LibTorch caches the casts of parameters until the outermost region ends. Code that changes
/// parameters inside it, other than by DistributedOptimizer::step(), must call
/// at::autocast::clear_cache() or pass `cache_enabled` = false.
class [[nodiscard]] Autocast {
 public:
  /// @param dtype BFloat16 or Half
  /// @param device the CPU or CUDA: where the operators' tensors lie
  /// @param enabled false: operators run in the dtypes of their inputs
  /// @param cache_enabled whether LibTorch may cache casts of parameters
  /// @throws InvalidArgument for another dtype or device
  explicit Autocast(c10::ScalarType dtype, c10::DeviceType device = c10::kCPU, bool enabled = true,
                    bool cache_enabled = true);
  ~Autocast();
  Autocast(const Autocast&) = delete;  // it restores once
  Autocast& operator=(const Autocast&) = delete;

 private:
  void change_dtype(c10::ScalarType dtype) const;

  c10::DeviceType device_;
  c10::ScalarType outer_dtype_;
  bool was_enabled_;
  bool was_cache_enabled_;
};

}  // namespace kolo
#pragma GCC visibility pop
