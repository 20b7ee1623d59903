#pragma once

#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

namespace kolo::test {

/// CPU tensors that alias the memory of CUDA tensors for one call of a CPU kernel. Sizes and
/// strides are the same, and tensors that share memory still share it.
class CpuTwins {
 public:
  explicit CpuTwins(c10::Device device) : device_(device) {}

  at::Tensor twin_of(const at::Tensor& original);
  /// Resizes the originals of twins that the kernel has resized.
  void copy_sizes_back();
  /// The CUDA tensor for a result of the kernel: the original if the result is a twin, a view of
  /// the original if it lies in a twin's memory; otherwise nothing.
  std::optional<at::Tensor> original_of(const at::Tensor& result) const;
  at::Tensor copy_on_gpu(const at::Tensor& result) const;

 private:
  struct Pair {
    at::Tensor original;
    at::Tensor twin;
    const void* memory;  // of the twin's storage at first
  };

  c10::Device device_;
  std::vector<Pair> pairs_;
};

}  // namespace kolo::test
