#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

namespace kolo {

/// While it lives, LibTorch runs those operators of this thread that gain by it, matrix products
/// for one, in a 16-bit type, and those that need the range in float32. After torch.autocast.
/// backward() runs outside:
///
///   at::Tensor loss;
///   {
///     const kolo::Autocast autocast(at::kBFloat16);
///     loss = loss_of(model->forward(rows));
///   }
///   scaler.scale(loss).backward();
///
/// Parameters stay float32, and so do their gradients. Regions nest, and one that is not enabled
/// inside another runs in the types of its inputs. Each restores what it found; made and destroyed
/// on one thread, the inner one first.
///
/// LibTorch keeps the casts of parameters until the outermost region ends, so code inside that
/// changes parameters in another way than DistributedOptimizer::step() must call
/// at::autocast::clear_cache(), or give `cache_enabled` = false.
class [[nodiscard]] Autocast {
 public:
  /// `dtype` is BFloat16 or Half, for tensors on `device`, which is CPU or CUDA; otherwise
  /// InvalidArgument.
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
