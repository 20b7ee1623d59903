#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "kolo/tensor_view.hpp"

namespace kolo::c10d_backend {

/// A tensor's memory as one row of elements, for data that only move: as bytes, if Kolo has no such
/// dtype. Throws InvalidArgument, naming the operation, unless the tensor is dense: strided, without
/// gaps and overlaps, on the CPU or a CUDA device.
TensorView view_to_move(const at::Tensor& tensor, const char* operation);
/// The same for a reduction. Throws also for dtypes that Kolo does not have.
TensorView view_to_reduce(const at::Tensor& tensor, const char* operation);

/// Throws InvalidArgument unless there is one tensor.
at::Tensor& the_only(std::vector<at::Tensor>& tensors, const char* operation);
/// Throws InvalidArgument unless there is one tensor for each of `size` ranks.
void require_count(std::size_t count, int size, const char* operation);

/// The tensors of a list, one after another in memory.
class Joined {
 public:
  /// Throws InvalidArgument if they are not dense, or differ in dtype or device.
  Joined(const std::vector<at::Tensor>& tensors, const char* operation);

  const at::Tensor& flat() const { return flat_; }
  const std::vector<std::int64_t>& counts() const { return counts_; }
  void copy_in() const;
  void copy_out() const;

 private:
  void for_each(const std::function<void(const at::Tensor&, const at::Tensor&)>& visit) const;

  std::vector<at::Tensor> tensors_;
  std::vector<std::int64_t> counts_;
  at::Tensor flat_;
};

}  // namespace kolo::c10d_backend
