#pragma once

#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

namespace kolo::test {

/// CPU tensors over the memory of CUDA tensors, for one call of a CPU kernel. They keep sizes,
/// strides and which of them share memory.
class CpuTwins {
 public:
  explicit CpuTwins(c10::Device device) : device_(device) {}

  at::Tensor twin_of(const at::Tensor& original);
  /// What the kernel resized has the new size on the GPU too.
  void bring_back_sizes();
  /// For a result of the kernel's that is a twin, its original, and a view of that for one that
  /// lies in a twin's memory. Null otherwise.
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
