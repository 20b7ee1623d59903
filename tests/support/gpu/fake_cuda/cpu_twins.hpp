#pragma once

#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

namespace kolo::test {

/// CPU tensors over the memory of CUDA tensors, for one call of a CPU kernel, with the same sizes
/// and strides. Tensors that share memory still do.
class CpuTwins {
 public:
  explicit CpuTwins(c10::Device device) : device_(device) {}

  at::Tensor twin_of(const at::Tensor& original);
  /// Resizes the originals of the tensors that the kernel has resized.
  void bring_back_sizes();
  /// The original of a result of the kernel that is a twin; a view of the original for a result in
  /// a twin's memory; otherwise null.
  std::optional<at::Tensor> original_of(const at::Tensor& result) const;
  at::Tensor copy_on_gpu(const at::Tensor& result) const;

 private:
  struct Pair {
    at::Tensor original;
    at::Tensor twin;
    const void* memory;  // the storage's, that the twin had at first
  };

  c10::Device device_;
  std::vector<Pair> pairs_;
};

}  // namespace kolo::test
