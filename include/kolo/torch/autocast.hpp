#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#pragma GCC visibility push(default)
namespace kolo {

/// While it lives, LibTorch runs this thread's operators in a 16-bit dtype where that pays, as for
/// matrix products, and in float32 where they need its range. Semantics of torch.autocast. Call
/// backward() outside:
///
///   at::Tensor loss;
///   {
///     const kolo::Autocast autocast(at::kBFloat16);
///     loss = loss_of(model->forward(rows));
///   }
///   scaler.scale(loss).backward();
///
/// Parameters and their gradients stay float32. Regions nest; a disabled region inside another runs
/// operators in the dtypes of their inputs. Each region restores the previous state. Construct and
/// destroy a region on one thread, inner regions first.
///
/// LibTorch caches the casts of parameters until the outermost region ends. Code that changes
/// parameters inside a region, other than DistributedOptimizer::step(), must call
/// at::autocast::clear_cache() or pass `cache_enabled` = false.
class [[nodiscard]] Autocast {
 public:
  /// @param dtype BFloat16 or Half
  /// @param device of the operators' tensors: the CPU or CUDA
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
